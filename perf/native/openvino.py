"""The workloads by hand on OpenVINO: one request at a time, which is what its latency hint is for."""

import os
from functools import partial

import openvino

from native.data import SHAPES, draw
from native.onnx_models import models
from native.serve import serve

OPTIONS = {
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_PRECISION_HINT": "f32",
    "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
    "CPU_DENORMALS_OPTIMIZATION": True,
}


def compiled(model, core=openvino.Core()):  # noqa: B008 - one core for the process
    return core.compile_model(core.read_model(model), "CPU", OPTIONS)


def plain(model, data):
    """NumPy arrays, taken without a copy."""
    request = compiled(model).create_infer_request()
    return [partial(request.infer, x, share_inputs=True, share_outputs=True) for (x,) in data.ring]


def aligned(x):
    """A tensor in memory that the runtime has aligned for its kernels."""
    tensor = openvino.Tensor(openvino.Type.f32, openvino.Shape(x.shape))
    tensor.data[...] = x
    return tensor


def bound(workload, model, data, own_outputs=False):
    """A request for every input, its tensor set once; one output for all, or one each."""
    made, requests = compiled(model), []
    y = openvino.Tensor(openvino.Type.f32, openvino.Shape(SHAPES[workload][1]))
    for (x,) in data.ring:
        request = made.create_infer_request()
        request.set_input_tensor(aligned(x))
        if not own_outputs:
            request.set_output_tensor(y)
        requests.append(request)
    return [partial(request.infer, share_outputs=True) for request in requests]


def switched(model, data):
    """One request whose input is set before every call."""
    request, tensors = compiled(model).create_infer_request(), [aligned(x) for (x,) in data.ring]

    def step(tensor):
        request.set_input_tensor(tensor)
        request.infer(share_outputs=True)

    return [partial(step, tensor) for tensor in tensors]


def formulations_of(workload, mode):
    """The formulations, bound to their data."""
    data, found = draw(workload, mode), {}
    for name, model in models(workload, data).items():
        found[name] = partial(plain, model, data)
        found[f"{name}, bound"] = partial(bound, workload, model, data)
        found[f"{name}, bound, own outputs"] = partial(bound, workload, model, data, own_outputs=True)
        found[f"{name}, one request"] = partial(switched, model, data)
    return found


if __name__ == "__main__":
    serve(formulations_of)
