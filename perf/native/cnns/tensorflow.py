"""The networks by hand in TensorFlow: concrete functions on resident tensors, with and without XLA."""

from functools import partial

import tensorflow as tf

from native.cnns.networks import NETWORKS, Add, Conv, Gate, MaxPool, pictures
from native.serve import serve

ACTIVATIONS = {"": tf.identity, "relu": tf.nn.relu, "silu": tf.nn.silu}


def convolved(x, each):
    edge = each.padding
    padding = [[0, 0], [edge, edge], [edge, edge], [0, 0]]
    kernel = each.weight.transpose(2, 3, 1, 0)
    if each.groups > 1 and each.groups == each.weight.shape[0]:
        wide = tf.pad(x, padding)
        y = tf.nn.depthwise_conv2d(wide, kernel.transpose(0, 1, 3, 2), [1, each.stride, each.stride, 1], "VALID")
    else:
        y = tf.nn.conv2d(x, kernel, each.stride, padding)
    return ACTIVATIONS[each.activation](tf.nn.bias_add(y, each.bias))


def network(operations, x):
    """The list of operations, traced; weights are constants."""
    values = [x]
    for each in operations:
        x = values[each.x]
        if isinstance(each, Conv):
            y = convolved(x, each)
        elif isinstance(each, Add):
            y = ACTIVATIONS[each.activation](x + values[each.other])
        elif isinstance(each, MaxPool):
            y = tf.nn.max_pool2d(x, 3, 2, [[0, 0], [1, 1], [1, 1], [0, 0]])
        elif isinstance(each, Gate):
            (narrow, wide), (first, second) = each.weights, each.biases
            hidden = tf.nn.silu(tf.matmul(tf.reduce_mean(x, (1, 2)), narrow.T) + first)
            y = x * tf.sigmoid(tf.matmul(hidden, wide.T) + second)[:, None, None]
        else:
            y = tf.matmul(tf.reduce_mean(x, (1, 2)), each.weight.T) + each.bias
        values.append(y)
    return values[-1]


def bound(model, batch, xla):
    """Steps over the ring of pictures."""
    ring = [tf.constant(each.transpose(0, 2, 3, 1)) for each in pictures(batch)]
    call = tf.function(partial(network, NETWORKS[model]()), jit_compile=xla, autograph=False)
    call = call.get_concrete_function(tf.TensorSpec(ring[0].shape))
    return [partial(lambda x: call(x).numpy(), x) for x in ring]


def formulations_of(model, batch):
    """The formulations, bound to their data. XLA's grouped convolutions take minutes a batch: it has ResNet only."""
    found = {"function": partial(bound, model, batch, False)}
    if model == "resnet50":
        found["XLA"] = partial(bound, model, batch, True)
    return found


if __name__ == "__main__":
    serve(formulations_of)
