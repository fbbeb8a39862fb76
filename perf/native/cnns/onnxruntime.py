"""The networks by hand on ONNX Runtime: NumPy in and out, and bound buffers."""

from functools import partial

from native.cnns.networks import CLASSES, pictures
from native.cnns.onnx_models import model
from native.onnxruntime import bound, session
from native.serve import serve


def plain(name, batch):
    run = session(model(name, batch)).run
    return [partial(run, ["y"], {"x": x}) for x in pictures(batch)]


def formulations_of(name, batch):
    """The formulations, bound to their data."""
    shape = (int(batch), CLASSES)
    return {
        "plain": partial(plain, name, batch),
        "bound": lambda: bound(model(name, batch), pictures(batch), shape),
    }


if __name__ == "__main__":
    serve(formulations_of)
