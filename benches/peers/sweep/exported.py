"""A case of the sweep as an ONNX model, as PyTorch exports it, in ONNX Runtime or in OpenVINO.

Both get the operands once, where they lie, and write the results where they like. What PyTorch
cannot export, or the library does not have, is an error that names it.
"""

import io
import warnings

OPSET = 20


def model(code, names, operands):
    """The bytes of an ONNX file. Numbers are constants of it; tensors are its inputs."""
    import torch

    tensors = {name: x for name, x in zip(names, operands) if torch.is_tensor(x)}
    numbers = {name: x for name, x in zip(names, operands) if not torch.is_tensor(x)}

    class Case(torch.nn.Module):
        def forward(self, *inputs):
            values = {**dict(zip(tensors, inputs)), **numbers}
            return eval(code, {**values, "torch": torch, "F": torch.nn.functional})

    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Case().eval(), tuple(tensors.values()), file, dynamo=False, opset_version=OPSET,
            input_names=list(tensors), do_constant_folding=False,
        )
    return file.getvalue(), {name: x.detach().numpy() for name, x in tensors.items()}


def onnxruntime(file, inputs, threads):
    """A call of the model, and its first result."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    bound = session.io_binding()
    for one in session.get_inputs():
        bound.bind_ortvalue_input(one.name, ort.OrtValue.ortvalue_from_numpy(inputs[one.name]))
    for one in session.get_outputs():
        bound.bind_output(one.name)
    return lambda: session.run_with_iobinding(bound), lambda: bound.copy_outputs_to_cpu()[0]


def openvino(file, inputs, threads):
    """A call of the model, and its first result."""
    import openvino as ov

    core = ov.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32",
                "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    request = core.compile_model(core.read_model(file), "CPU", settings).create_infer_request()
    for one in request.model_inputs:
        request.set_tensor(one, ov.Tensor(inputs[one.any_name], shared_memory=True))
    return request.infer, lambda: request.get_output_tensor(0).data


LIBRARIES = {"onnxruntime": onnxruntime, "openvino": openvino}
