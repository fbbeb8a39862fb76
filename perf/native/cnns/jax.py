"""The networks by hand in JAX: channels first and last, grouped convolutions as the library has them or as products."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from native.cnns.networks import NETWORKS, Add, Conv, Gate, Head, MaxPool, pictures
from native.serve import serve

ACTIVATIONS = {"": lambda x: x, "relu": jax.nn.relu, "silu": jax.nn.silu}


def library(layout, x, kernel, each):
    """XLA's own convolution."""
    order = ("NHWC", "HWIO", "NHWC") if layout == "NHWC" else ("NCHW", "OIHW", "NCHW")
    padding, strides = [(each.padding, each.padding)] * 2, (each.stride, each.stride)
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=order, feature_group_count=each.groups
    )


def shifted(layout, x, kernel, each):
    """A grouped convolution as a sum of products of shifted pictures, channels last; others as the library has them."""
    if each.groups == 1:
        return library(layout, x, kernel, each)
    batch, height, width, channels = x.shape
    size, inner, filters = kernel.shape[0], channels // each.groups, kernel.shape[-1]
    edge = each.padding
    wide = jnp.pad(x, ((0, 0), (edge, edge), (edge, edge), (0, 0)))
    rows, columns = -(-height // each.stride), -(-width // each.stride)
    taps = []
    for i in range(size):
        for j in range(size):
            seen = wide[:, i : i + height : each.stride, j : j + width : each.stride]
            if inner == 1:
                taps.append(seen * kernel[i, j, 0])
            else:
                split = seen.reshape(batch, rows, columns, each.groups, inner)
                tap = kernel[i, j].reshape(inner, each.groups, filters // each.groups)
                taps.append(jnp.einsum("bhwgc,cgf->bhwgf", split, tap).reshape(batch, rows, columns, filters))
    return sum(taps[1:], taps[0])


def network(operations, layout, convolution, weights, x):
    """The list of operations, traced."""
    area = (1, 2) if layout == "NHWC" else (2, 3)
    per_channel = (lambda v: v) if layout == "NHWC" else (lambda v: v[..., None, None])
    values = [x]
    for each, own in zip(operations, weights, strict=True):
        x = values[each.x]
        if isinstance(each, Conv):
            y = convolution(layout, x, own[0], each) + per_channel(own[1])
            y = ACTIVATIONS[each.activation](y)
        elif isinstance(each, Add):
            y = ACTIVATIONS[each.activation](x + values[each.other])
        elif isinstance(each, MaxPool):
            window = [1, 3, 3, 1] if layout == "NHWC" else [1, 1, 3, 3]
            stride = [1, 2, 2, 1] if layout == "NHWC" else [1, 1, 2, 2]
            edges = [(int(length == 3),) * 2 for length in window]
            y = lax.reduce_window(x, -jnp.inf, lax.max, window, stride, edges)
        elif isinstance(each, Gate):
            hidden = jax.nn.silu(x.mean(area) @ own[0] + own[1])
            factor = jax.nn.sigmoid(hidden @ own[2] + own[3])
            y = x * (factor[:, None, None] if layout == "NHWC" else factor[..., None, None])
        else:
            y = x.mean(area) @ own[0] + own[1]
        values.append(y)
    return values[-1]


def weights_of(each, layout):
    if isinstance(each, Conv):
        return (each.weight.transpose(2, 3, 1, 0) if layout == "NHWC" else each.weight, each.bias)
    if isinstance(each, Gate):
        return (each.weights[0].T, each.biases[0], each.weights[1].T, each.biases[1])
    return (each.weight.T, each.bias) if isinstance(each, Head) else ()


def bound(model, batch, layout, convolution):
    """Steps over the ring of pictures."""
    operations = NETWORKS[model]()
    weights = jax.device_put([weights_of(each, layout) for each in operations])
    turn = (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)
    ring = [jax.device_put(np.ascontiguousarray(each.transpose(turn))) for each in pictures(batch)]
    call = jax.jit(partial(network, operations, layout, convolution))
    call = call.lower(weights, ring[0]).compile()
    return [partial(lambda x: call(weights, x).block_until_ready(), x) for x in ring]


def formulations_of(model, batch):
    """The formulations, bound to their data; ResNet has no groups."""
    found = {"channels last": partial(bound, model, batch, "NHWC", shifted)}
    if model == "resnet50":
        found["channels first"] = partial(bound, model, batch, "NCHW", library)
    return found


if __name__ == "__main__":
    serve(formulations_of)
