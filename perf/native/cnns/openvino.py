"""The networks by hand on OpenVINO: one request at a time, as its `benchmark_app -hint latency` has them."""

from functools import partial

from native.cnns.networks import pictures
from native.cnns.onnx_models import model
from native.openvino import aligned, compiled
from native.serve import serve


def plain(name, batch):
    request = compiled(model(name, batch)).create_infer_request()
    return [partial(request.infer, x, share_inputs=True, share_outputs=True) for x in pictures(batch)]


def bound(name, batch):
    """A request for every input, its tensor set once."""
    made, steps = compiled(model(name, batch)), []
    for x in pictures(batch):
        request = made.create_infer_request()
        request.set_input_tensor(aligned(x))
        steps.append(partial(request.infer, share_outputs=True))
    return steps


def formulations_of(name, batch):
    """The formulations, bound to their data."""
    return {"plain": partial(plain, name, batch), "bound": partial(bound, name, batch)}


if __name__ == "__main__":
    serve(formulations_of)
