"""The networks by hand on ONNX Runtime: NumPy in and out, and bound buffers."""

from functools import partial

import onnxruntime as ort

from native.cnns.networks import CLASSES, pictures
from native.cnns.onnx_models import model
from native.onnxruntime import session
from native.serve import serve


def plain(name, batch):
    run = session(model(name, batch)).run
    return [partial(run, ["y"], {"x": x}) for x in pictures(batch)]


def bound(name, batch):
    """Inputs and the output in buffers that the runtime keeps."""
    made = session(model(name, batch))
    y = ort.OrtValue.ortvalue_from_shape_and_type((int(batch), CLASSES), "float32")
    steps = []
    for x in pictures(batch):
        binding = made.io_binding()
        binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(x))
        binding.bind_ortvalue_output("y", y)
        steps.append(partial(made.run_with_iobinding, binding))
    return steps


def make(name, batch):
    """The formulations, bound to their data."""
    return {"plain": partial(plain, name, batch), "bound": partial(bound, name, batch)}


if __name__ == "__main__":
    serve(make)
