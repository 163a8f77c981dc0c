"""Makes two small Llamas as GGUF files whose matrices have each of the types that are read, three
Qwen 3 with experts in some of them, and their log-probabilities by `transformers` in float64 of the
weights that gguf-py dequantises.

    pip install torch transformers gguf && python kinds.py

Written with transformers 5.24, torch 2.15 and gguf 0.19. The blocks are random bytes, but for their
scales, which make weights as large as those of models.
"""

import pathlib

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

HERE = pathlib.Path(__file__).parent
T = gguf.GGMLQuantizationType
WIDTH, HEADS, KV_HEADS, HEAD, VOCABULARY, POSITIONS = 256, 4, 2, 16, 48, 6
# Where blocks have their halves.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82],
    T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0],
}  # fmt: skip
FILES = {
    "a": {
        "token_embd": T.Q5_0, "output": T.Q6_K, "attn_q": T.Q5_K, "attn_k": T.Q4_K,
        "attn_v": T.Q3_K, "attn_output": T.IQ4_NL, "ffn_gate": T.IQ4_XS, "ffn_up": T.Q2_K,
        "ffn_down": T.Q5_1,
    },
    "b": {
        "token_embd": T.Q8_0, "output": T.F16, "attn_q": T.Q4_1, "attn_k": T.BF16,
        "attn_v": T.F32, "attn_output": T.Q4_0, "ffn_gate": T.Q4_K, "ffn_up": T.Q4_K,
        "ffn_down": T.Q6_K,
    },
}  # fmt: skip
NAMES = {
    "token_embd": "model.embed_tokens", "output": "lm_head", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "output_norm": "model.norm",
}  # fmt: skip
rng = np.random.default_rng(40)


def matrix(kind, rows, columns):
    """Blocks, and what they are."""
    size = 1.6 / columns**0.5
    if kind not in HALVES:
        blocks = gguf.quantize((rng.standard_normal((rows, columns)) * size).astype("f4"), kind)
        return blocks, gguf.dequantize(blocks, kind)
    block, of_block = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows, columns // block, of_block), dtype=np.uint8)
    halves = [rng.uniform(0.5, 1.5, (rows, columns // block, 1)) for _ in HALVES[kind]]
    # A minimum takes away, or adds, what makes weights of both signs.
    if len(halves) == 2:
        halves[1] = halves[0] * {T.Q4_1: -7.5, T.Q5_1: -15.5, T.Q2_K: 1.5}.get(kind, 7.5 * 2)
        if kind == T.Q5_K:
            halves[1] = halves[0] * 15.5
        if kind == T.Q4_K:
            halves[1] = halves[0] * 7.5
    for scale in (1 / 256, None):
        for at, half in zip(HALVES[kind], halves):
            of = scale or size / 256 / values.std()
            blocks[:, :, at : at + 2] = (half * of).astype(np.float16).view(np.uint8)
        values = gguf.dequantize(blocks.reshape(rows, -1), kind)
    return blocks.reshape(rows, -1), values


def begin(name, architecture):
    out = gguf.GGUFWriter(HERE / f"kinds_{name}.gguf", architecture)
    out.add_block_count(1)
    out.add_context_length(256)
    out.add_embedding_length(WIDTH)
    out.add_feed_forward_length(WIDTH)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_key_length(HEAD)
    out.add_value_length(HEAD)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list([chr(0x21 + k) for k in range(VOCABULARY)])
    out.add_eos_token_id(0)
    return out


def finish(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


SIZES = dict(
    hidden_size=WIDTH,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    head_dim=HEAD,
    num_hidden_layers=1,
    intermediate_size=WIDTH,
    max_position_embeddings=256,
    rms_norm_eps=1e-5,
    vocab_size=VOCABULARY,
    tie_word_embeddings=False,
    attn_implementation="eager",
    experts_implementation="eager",
    bos_token_id=None,
    eos_token_id=None,
)


def logprobs(model, weights, prompt):
    state = {key: torch.from_numpy(np.array(value)).double() for key, value in weights.items()}
    model.load_state_dict(state)
    with torch.no_grad():
        found = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    return found[-POSITIONS:].float().contiguous()


# Of the gates, of what goes up and what comes down.
EXPERTS = {
    "c": (T.Q4_K, T.Q6_K, T.Q4_0), "d": (T.Q2_K, T.IQ4_XS, T.Q5_1), "e": (T.F32, T.F32, T.F32),
}  # fmt: skip


def experts(name, prompt):
    """A Qwen 3 of five experts, of which a token sees two."""
    count, inner = 5, 32
    gate, up, down = EXPERTS[name]
    out = begin(name, "qwen3moe")
    out.add_expert_count(count)
    out.add_expert_used_count(2)
    out.add_expert_feed_forward_length(inner)
    weights = {}

    def add(part, kind, shape, name):
        rows, columns = int(np.prod(shape[:-1])), shape[-1]
        blocks, values = matrix(kind, rows, columns)
        out.add_tensor(f"{part}.weight", blocks.reshape(*shape[:-1], -1), raw_dtype=kind)
        weights[name] = values.reshape(shape)

    layer = "model.layers.0"
    add("token_embd", T.Q8_0, (VOCABULARY, WIDTH), "model.embed_tokens.weight")
    add("output", T.Q8_0, (VOCABULARY, WIDTH), "lm_head.weight")
    for part, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
        name = f"{layer}.self_attn.{part}_proj.weight"
        add(f"blk.0.attn_{part}", T.Q8_0, (heads * HEAD, WIDTH), name)
    name = f"{layer}.self_attn.o_proj.weight"
    add("blk.0.attn_output", T.Q8_0, (WIDTH, HEADS * HEAD), name)
    values = (rng.standard_normal((count, WIDTH)) * 0.1).astype("f4")
    out.add_tensor("blk.0.ffn_gate_inp.weight", values)
    weights[f"{layer}.mlp.gate.weight"] = values
    add("blk.0.ffn_gate_exps", gate, (count, inner, WIDTH), "gate")
    add("blk.0.ffn_up_exps", up, (count, inner, WIDTH), "up")
    of = f"{layer}.mlp.experts"
    add("blk.0.ffn_down_exps", down, (count, WIDTH, inner), f"{of}.down_proj")
    both = [weights.pop("gate"), weights.pop("up")]
    weights[f"{of}.gate_up_proj"] = np.concatenate(both, 1)
    for part, own, wide in (
        ("blk.0.attn_norm", f"{layer}.input_layernorm", WIDTH),
        ("blk.0.ffn_norm", f"{layer}.post_attention_layernorm", WIDTH),
        ("blk.0.attn_q_norm", f"{layer}.self_attn.q_norm", HEAD),
        ("blk.0.attn_k_norm", f"{layer}.self_attn.k_norm", HEAD),
        ("output_norm", "model.norm", WIDTH),
    ):
        values = (rng.standard_normal(wide) * 0.3 + 1).astype("f4")
        out.add_tensor(f"{part}.weight", values)
        weights[f"{own}.weight"] = values
    finish(out)
    more = dict(num_experts=count, num_experts_per_tok=2, moe_intermediate_size=inner)
    own = Qwen3MoeConfig(**SIZES, **more, norm_topk_prob=True)
    return logprobs(Qwen3MoeForCausalLM(own).double(), weights, prompt)


def main():
    tensors, prompt = {}, [(k * 7 + k * k // 3) % VOCABULARY for k in range(40)]
    for name, kinds in FILES.items():
        out = begin(name, "llama")
        shapes = {
            "token_embd": (VOCABULARY, WIDTH), "output": (VOCABULARY, WIDTH),
            "attn_q": (HEADS * HEAD, WIDTH), "attn_k": (KV_HEADS * HEAD, WIDTH),
            "attn_v": (KV_HEADS * HEAD, WIDTH), "attn_output": (WIDTH, HEADS * HEAD),
            "ffn_gate": (WIDTH, WIDTH), "ffn_up": (WIDTH, WIDTH), "ffn_down": (WIDTH, WIDTH),
        }  # fmt: skip
        weights = {}
        for part, shape in shapes.items():
            blocks, values = matrix(kinds[part], *shape)
            whole = part in ("token_embd", "output")
            out.add_tensor(
                f"{part}.weight" if whole else f"blk.0.{part}.weight", blocks, raw_dtype=kinds[part]
            )
            if part in ("attn_q", "attn_k"):
                # Pairs that are turned are neighbours there, and half a head apart here.
                rows = values.reshape(-1, HEAD // 2, 2, WIDTH)
                values = rows.transpose(0, 2, 1, 3).reshape(shape)
            own = NAMES[part] if whole else f"model.layers.0.{NAMES[part]}"
            weights[f"{own}.weight"] = values
        for part in ("attn_norm", "ffn_norm", "output_norm"):
            values = (rng.standard_normal(WIDTH) * 0.3 + 1).astype("f4")
            whole = part == "output_norm"
            out.add_tensor(f"{part}.weight" if whole else f"blk.0.{part}.weight", values)
            own = NAMES[part] if whole else f"model.layers.0.{NAMES[part]}"
            weights[f"{own}.weight"] = values
        model = LlamaForCausalLM(LlamaConfig(**SIZES)).double()
        tensors[f"logprobs.{name}"] = logprobs(model, weights, prompt)
    for name in EXPERTS:
        tensors[f"logprobs.{name}"] = experts(name, prompt)
    save_file(tensors, HERE / "kinds.safetensors")


main()
