"""The workloads by hand on ONNX Runtime: NumPy in and out, and bound buffers."""

import os
from functools import partial

import onnxruntime as ort

from native.data import SHAPES, draw
from native.onnx_models import models
from native.serve import serve


def session(model):
    options = ort.SessionOptions()
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def plain(model, data):
    run = session(model).run
    return [partial(run, ["y"], {"x": x}) for (x,) in data.ring]


def bound(model, inputs, shape):
    """Inputs and the output, of this shape, in buffers that the runtime keeps."""
    made = session(model)
    y = ort.OrtValue.ortvalue_from_shape_and_type(shape, "float32")
    steps = []
    for x in inputs:
        binding = made.io_binding()
        binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
        binding.bind_ortvalue_output("y", y)
        # The session's own method checks its arguments again; the binding inside it is what runs.
        steps.append(partial(made.run_with_iobinding, binding))
    return steps


def formulations_of(workload, mode):
    """The formulations, bound to their data."""
    data, found = draw(workload, mode), {}
    for name, model in models(workload, data).items():
        found[name] = partial(plain, model, data)
        found[f"{name}, bound"] = partial(bound, model, [x for (x,) in data.ring], SHAPES[workload][1])
    return found


if __name__ == "__main__":
    serve(formulations_of)
