"""Makes small models of random weights, and their log-probabilities by `transformers` in float64.
Nothing is downloaded.

    pip install torch transformers gguf && python models.py

Written with transformers 5.24, torch 2.15 and gguf 0.17. `models.safetensors` has the weights in
float16, by Hugging Face's names behind those of their families, and for each case its
log-probabilities `[positions, vocabulary]` behind `logprobs.`. `models.json` has the cases: the
`config.json` of a folder, and what a GGUF file with the same weights has: its architecture and its
keys, its tensors' names, which rows are turned into neighbours, and which norms have one added.
"""

import json
import math
import pathlib
import re

import gguf
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

HERE = pathlib.Path(__file__).parent
VOCABULARY, POSITIONS, LAYERS = 48, 6, 2


def config(model_type="llama", **more):
    base = dict(
        model_type=model_type,
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=LAYERS,
        intermediate_size=48,
        max_position_embeddings=256,
        rms_norm_eps=1e-5,
        vocab_size=VOCABULARY,
        tie_word_embeddings=False,
        rope_theta=10000.0,
    )
    return {key: value for key, value in {**base, **more}.items() if value is not ...}


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

# A family of weights, the configuration, the architecture in GGUF, and keys there that do not
# follow from the configuration.
CASES = {
    "plain": ("A", config(), "llama", {}),
    "tied": ("A", config(tie_word_embeddings=True), "llama", {}),
    "base": ("A", config(rope_theta=300.0), "llama", {}),
    "base among parameters": (
        "A",
        config(rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 300.0}),
        "llama",
        {},
    ),
    "linear": (
        "A",
        config(rope_scaling={"rope_type": "linear", "factor": 4.0}),
        "llama",
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "linear by its factor": (
        "A",
        config(rope_scaling={"rope_type": "linear", "factor": 4.0}),
        "llama",
        {"rope.scaling.factor": 4.0},
    ),
    "linear by another name": (
        "A",
        config(rope_scaling={"rope_type": "linear", "factor": 4.0}),
        "llama",
        {"rope.scale_linear": 4.0},
    ),
    "llama3": ("A", config(rope_scaling=LLAMA3), "llama", {}),
    "yarn": (
        "A",
        config(rope_scaling=YARN),
        "llama",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    "yarn with its own numbers": (
        "A",
        config(rope_scaling={**YARN, "attention_factor": 1.5, "beta_fast": 4, "beta_slow": 2}),
        None,
        {},
    ),
    "epsilon": ("A", config(rms_norm_eps=0.5), "llama", {}),
    "gelu": ("A", config(hidden_act="gelu"), None, {}),
    "wide heads": ("B", config(head_dim=16), "llama", {}),
    "one head each": ("C", config(num_key_value_heads=4), "llama", {}),
    "biases": ("D", config(attention_bias=True, mlp_bias=True), "llama", {}),
    "mistral": ("A", config("mistral", sliding_window=64), "mistral3", {}),
    "qwen2": ("E", config("qwen2", rope_theta=1000.0), "qwen2", {}),
    "qwen3": ("F", config("qwen3", head_dim=16, tie_word_embeddings=True), "qwen3", {}),
    "internlm2": ("A", config(), "internlm2", {}),
    "xverse": ("A", config(), "xverse", {}),
    "exaone": ("A", config(), "exaone", {}),
    "ernie": (
        "A",
        config("ernie4_5", head_dim=8, use_bias=False, rope_theta=500000.0),
        "ernie4_5",
        {},
    ),
    "smollm3": (
        "A",
        config("smollm3", no_rope_layers=[1, 0, 1, 1]),
        None,
        {},
    ),
    "granite": (
        "A",
        config(
            "granite",
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            attention_multiplier=0.5,
            logits_scaling=2.0,
        ),
        "granite",
        {
            "embedding_scale": 12.0,
            "residual_scale": 0.22,
            "attention.scale": 0.5,
            "logit_scale": 2.0,
        },
    ),
    "minicpm": (
        "A",
        config(
            "granite",
            embedding_multiplier=12.0,
            residual_multiplier=0.99,
            attention_multiplier=8**-0.5,
            logits_scaling=0.125,
        ),
        "minicpm",
        {"residual_scale": 0.99},
    ),
    "mistral with a window": ("A", config("mistral", sliding_window=11), None, {}),
    "qwen2 with windows": (
        "E",
        config("qwen2", sliding_window=11, use_sliding_window=True, max_window_layers=1),
        None,
        {},
    ),
    "phi3": ("G", config("phi3", sliding_window=200), "phi3", {}),
    "phi3 with a window": ("G", config("phi3", sliding_window=23), "phi3", {}),
    "phi3 in part": (
        "G",
        config("phi3", partial_rotary_factor=0.5, rope_theta=500.0),
        "phi3",
        {},
    ),
    "phi3 long": (
        "G",
        config(
            "phi3",
            original_max_position_embeddings=64,
            rope_scaling={
                "rope_type": "longrope",
                "short_factor": [1.0, 1.25, 1.5, 2.0],
                "long_factor": [4.0, 5.0, 6.0, 7.0],
            },
        ),
        "phi3",
        {
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": (1 + math.log(4) / math.log(64)) ** 0.5,
        },
    ),
    "gemma": (
        "A",
        config(
            "gemma",
            head_dim=8,
            hidden_act="gelu_pytorch_tanh",
            tie_word_embeddings=True,
        ),
        "gemma",
        {},
    ),
    "gemma2": (
        "S",
        config(
            "gemma2",
            head_dim=16,
            hidden_activation="gelu_pytorch_tanh",
            tie_word_embeddings=True,
            query_pre_attn_scalar=16,
            sliding_window=16,
            attn_logit_softcapping=1.5,
            final_logit_softcapping=4.0,
        ),
        "gemma2",
        {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 4.0},
    ),
    "gemma3": (
        "H",
        config(
            "gemma3_text",
            head_dim=16,
            hidden_activation="gelu_pytorch_tanh",
            tie_word_embeddings=True,
            query_pre_attn_scalar=16,
            rope_theta=...,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            sliding_window=16,
            num_hidden_layers=6,
        ),
        "gemma3",
        {"rope.freq_base": 1000000.0, "rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
    ),
    "olmo2": ("I", config("olmo2"), "olmo2", {}),
    "exaone4": (
        "J",
        config("exaone4", head_dim=8, sliding_window=None, layer_types=["full_attention"] * LAYERS),
        "exaone4",
        {},
    ),
    "exaone4 with windows": (
        "K",
        config("exaone4", head_dim=8, sliding_window=16, num_hidden_layers=4),
        "exaone4",
        {},
    ),
    "glm4": (
        "L",
        config("glm4", head_dim=8, attention_bias=True, partial_rotary_factor=0.5),
        "glm4",
        {},
    ),
    "stablelm": (
        "M",
        config(
            "stablelm",
            rms_norm_eps=...,
            layer_norm_eps=1e-5,
            use_qkv_bias=True,
            partial_rotary_factor=0.25,
        ),
        "stablelm",
        {"use_parallel_residual": False},
    ),
    "stablelm side by side": (
        "N",
        config(
            "stablelm",
            rms_norm_eps=...,
            layer_norm_eps=1e-5,
            use_parallel_residual=True,
            partial_rotary_factor=0.5,
        ),
        "stablelm",
        {"use_parallel_residual": True},
    ),
    "starcoder2": (
        "O",
        config(
            "starcoder2",
            rms_norm_eps=...,
            norm_epsilon=1e-5,
            hidden_act="gelu_pytorch_tanh",
            tie_word_embeddings=True,
            sliding_window=13,
        ),
        "starcoder2",
        {},
    ),
    "cohere": (
        "P",
        config(
            "cohere",
            rms_norm_eps=...,
            layer_norm_eps=1e-5,
            logit_scale=0.5,
            tie_word_embeddings=True,
        ),
        "command-r",
        {"logit_scale": 0.5},
    ),
    "cohere2": (
        "Q",
        config(
            "cohere2",
            rms_norm_eps=...,
            layer_norm_eps=1e-5,
            logit_scale=0.5,
            tie_word_embeddings=True,
            sliding_window=16,
            num_hidden_layers=4,
        ),
        "cohere2",
        {"logit_scale": 0.5},
    ),
    "smollm3 as it is": (
        "R",
        config("smollm3", num_hidden_layers=4, tie_word_embeddings=True),
        "smollm3",
        {},
    ),
    "qwen3moe": (
        "T",
        config(
            "qwen3_moe",
            head_dim=16,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            norm_topk_prob=True,
        ),
        "qwen3moe",
        {},
    ),
    "qwen3moe with shares as they are": (
        "T",
        config(
            "qwen3_moe",
            head_dim=16,
            num_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
        ),
        None,
        {},
    ),
    "qwen2moe": (
        "U",
        config(
            "qwen2_moe",
            num_experts=6,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=64,
        ),
        "qwen2moe",
        {"expert_shared_feed_forward_length": 64},
    ),
    "olmoe": (
        "V",
        config("olmoe", intermediate_size=64, num_experts=8, num_experts_per_tok=2),
        "olmoe",
        {},
    ),
    "mixtral": (
        "W",
        config("mixtral", intermediate_size=64, num_local_experts=4, num_experts_per_tok=2),
        "llama",
        {},
    ),
}


def theta_of(c):
    parameters = c.get("rope_parameters") or {}
    return c.get("rope_theta") or parameters.get("rope_theta") or 10000.0


def transformers_config(c):
    c = dict(c)
    theta = theta_of(c)
    c.pop("rope_theta", None)
    scaling = c.pop("rope_scaling", None) or c.pop("rope_parameters", None) or {}
    if "full_attention" not in scaling:
        scaling = {"rope_type": "default", "rope_theta": theta, **scaling}
    part = c.pop("partial_rotary_factor", None)
    if part is not None:
        scaling["partial_rotary_factor"] = part
    c["rope_parameters"] = scaling
    made = AutoConfig.for_model(
        c.pop("model_type"), **c, bos_token_id=None, eos_token_id=None, pad_token_id=None
    )
    made._attn_implementation = made._experts_implementation = "eager"
    return made


def keys(c, more):
    """What a GGUF file says of a configuration, behind its architecture's name."""
    of = {
        "block_count": c["num_hidden_layers"],
        "context_length": c["max_position_embeddings"],
        "embedding_length": c["hidden_size"],
        "feed_forward_length": c["intermediate_size"],
        "attention.head_count": c["num_attention_heads"],
        "attention.head_count_kv": c["num_key_value_heads"],
    }
    if "rms_norm_eps" in c:
        of["attention.layer_norm_rms_epsilon"] = c["rms_norm_eps"]
    for key in ["layer_norm_eps", "norm_epsilon"]:
        if key in c:
            of["attention.layer_norm_epsilon"] = c[key]
    head = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    if "head_dim" in c:
        of["attention.key_length"] = of["attention.value_length"] = head
    of["rope.dimension_count"] = int(head * c.get("partial_rotary_factor", 1))
    # Left out where it is what everybody takes it for.
    if theta_of(c) != 10000.0:
        of["rope.freq_base"] = theta_of(c)
    if c.get("sliding_window"):
        of["attention.sliding_window"] = c["sliding_window"]
    for key, name in {
        "num_experts": "expert_count",
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
    }.items():
        if key in c:
            of[name] = c[key]
    return {**of, **more}


def in_files(kind, key, x):
    """A tensor as folders have it: experts each by itself."""
    of = "block_sparse_moe" if kind == "mixtral" else "mlp"
    if ".mlp.experts." not in key:
        return [(key.replace(".mlp.gate.", f".{of}.gate."), x)]
    layer, part = key.split(".mlp.experts.")
    gate, up, down = ("w1", "w3", "w2") if of != "mlp" else ("gate_proj", "up_proj", "down_proj")
    parts = zip((gate, up), x.chunk(2, 1)) if part == "gate_up_proj" else [(down, x)]
    return [
        (f"{layer}.{of}.experts.{expert}.{name}.weight", one)
        for name, all_of in parts
        for expert, one in enumerate(all_of)
    ]


# Whose files have rows of queries and keys such that pairs are neighbours.
NEIGHBOURS = {"llama", "mistral3", "granite", "smollm3", "internlm2", "xverse", "minicpm"}
# Whose files have one added to norms.
ADDED = {"gemma", "gemma2", "gemma3"}


def main():
    tensors, cases = {}, []
    prompt = [(k * 7 + k * k // 3) % VOCABULARY for k in range(40)]
    for name, (family, c, architecture, more) in CASES.items():
        model = AutoModelForCausalLM.from_config(transformers_config(c)).double()
        whole = AutoModelForCausalLM.from_config(
            transformers_config({**c, "tie_word_embeddings": False})
        )
        # The same for all of a family, but that a tied one has no head of its own.
        generator = torch.Generator().manual_seed(ord(family))
        with torch.no_grad():
            named = dict(model.named_parameters())
            shapes, stored = whole.state_dict(), []
            for key in sorted(shapes):
                x = torch.randn(shapes[key].shape, generator=generator)
                # Norms of Gemma 2 and 3 have one added.
                middle = 0.2 if "bias" in key else 0.0 if family in "HS" else 1.0
                vector = x.dim() == 1
                x = x * 0.3 + middle if vector else x * 1.6 / shapes[key].shape[-1] ** 0.5
                for own, part in in_files(c["model_type"], key, x.half()):
                    stored.append(own)
                    tensors[f"{family}.{own}"] = part.contiguous()
                if key in named:
                    named[key].copy_(x.half())
            found = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
            tensors[f"logprobs.{name}"] = found[-POSITIONS:].float().contiguous()
            factors = {}
            if name == "llama3":
                plain = 10000.0 ** -(torch.arange(0, 8, 2).double() / 8)
                own = plain / model.model.rotary_emb.inv_freq.double()
                factors["rope_freqs.weight"] = own.tolist()
            for key in ["short", "long"]:
                if name == "phi3 long":
                    factors[f"rope_factors_{key}.weight"] = c["rope_scaling"][f"{key}_factor"]
        case = {"name": name, "weights": family, "config": c, "prompt": prompt}
        if architecture:
            kind = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
            names = gguf.get_tensor_name_map(kind, c["num_hidden_layers"])
            tied = c["tie_word_embeddings"]
            case["gguf"] = {
                "architecture": architecture,
                "keys": keys(c, more),
                "names": {
                    key: names.get_name(
                        re.sub(r"experts\.\d+\.", "experts.", key), (".weight", ".bias")
                    )
                    for key in sorted(stored)
                    if not (tied and key.startswith("lm_head"))
                },
                "neighbours": architecture in NEIGHBOURS,
                "added": architecture in ADDED,
                "factors": factors,
            }
        cases.append(case)
    save_file(tensors, HERE / "models.safetensors")
    lines = ",\n".join(json.dumps(case) for case in cases)
    (HERE / "models.json").write_text(f"[\n{lines}\n]\n")


main()
