"""Training by hand in JAX: one compiled step that overwrites what it is given, with optax's momentum."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from native.cnns.jax import ACTIVATIONS, library, shifted
from native.cnns.networks import NETWORKS, Add, Conv, Gate, MaxPool, pictures
from native.serve import serve
from native.training.data import EPSILON, KEPT, MOMENTUM, RATE, labels

AREA = (0, 1, 2)


def weights_of(each):
    if isinstance(each, Conv):
        filters = len(each.bias)
        return (each.weight.transpose(2, 3, 1, 0), np.ones(filters, "float32"), np.zeros(filters, "float32"))
    if isinstance(each, Gate):
        return (each.weights[0].T, each.biases[0], each.weights[1].T, each.biases[1])
    return () if isinstance(each, Add | MaxPool) else (each.weight.T, each.bias)


def statistics_of(each):
    filters = len(each.bias) if isinstance(each, Conv) else 0
    return (np.zeros(filters, "float32"), np.ones(filters, "float32")) if filters else ()


def normalised(y, scale, shift, running):
    """A batch norm, and its running statistics after it."""
    mean, square = y.mean(AREA), jnp.square(y).mean(AREA)
    variance = square - jnp.square(mean)
    factor = scale * jax.lax.rsqrt(variance + EPSILON)
    after = tuple(KEPT * old + (1 - KEPT) * new for old, new in zip(running, (mean, variance), strict=True))
    return y * factor + (shift - mean * factor), after


def network(operations, convolution, weights, running, x):
    """The list of operations, traced, channels last."""
    values, after = [x], []
    for each, own, seen in zip(operations, weights, running, strict=True):
        x, moved = values[each.x], ()
        if isinstance(each, Conv):
            y, moved = normalised(convolution("NHWC", x, own[0], each), own[1], own[2], seen)
            y = ACTIVATIONS[each.activation](y)
        elif isinstance(each, Add):
            y = ACTIVATIONS[each.activation](x + values[each.other])
        elif isinstance(each, MaxPool):
            edges = [(0, 0), (1, 1), (1, 1), (0, 0)]
            y = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), edges)
        elif isinstance(each, Gate):
            hidden = jax.nn.silu(x.mean((1, 2)) @ own[0] + own[1])
            y = x * jax.nn.sigmoid(hidden @ own[2] + own[3])[:, None, None]
        else:
            y = x.mean((1, 2)) @ own[0] + own[1]
        values.append(y)
        after.append(moved)
    return values[-1], after


def bound(model, batch, convolution):
    """Steps over the ring of pictures."""
    operations, optimiser = NETWORKS[model](), optax.sgd(RATE, MOMENTUM)

    def loss_of(weights, running, x, target):
        logits, after = network(operations, convolution, weights, running, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, target).mean(), after

    @partial(jax.jit, donate_argnums=0)
    def step(held, x, target):
        weights, running, state = held
        (loss, running), slopes = jax.value_and_grad(loss_of, has_aux=True)(weights, running, x, target)
        moves, state = optimiser.update(slopes, state)
        return (optax.apply_updates(weights, moves), running, state), loss

    weights = jax.device_put([weights_of(each) for each in operations])
    held = [(weights, jax.device_put([statistics_of(each) for each in operations]), optimiser.init(weights))]

    def call(x, target):
        held[0], loss = step(held[0], x, target)
        return loss.block_until_ready()

    ring = zip(pictures(batch), labels(batch), strict=True)
    fed = [(jax.device_put(np.ascontiguousarray(x.transpose(0, 2, 3, 1))), jax.device_put(y)) for x, y in ring]
    return [partial(call, *each) for each in fed]


def formulations_of(model, batch):
    """The formulation, bound to its data: channels last, and grouped convolutions as products where there are any."""
    convolution = library if model == "resnet50" else shifted
    return {"channels last": partial(bound, model, batch, convolution)}


if __name__ == "__main__":
    serve(formulations_of)
