"""Training by hand in TensorFlow: variables, a tape and the momentum kernel, in a function with and without XLA."""

from functools import partial

import tensorflow as tf

from native.cnns.networks import NETWORKS, Add, Conv, Gate, MaxPool, pictures
from native.serve import serve
from native.training.data import EPSILON, KEPT, MOMENTUM, RATE, labels

ACTIVATIONS = {"": tf.identity, "relu": tf.nn.relu, "silu": tf.nn.silu}


def variables_of(each):
    """Weights of an operation, and behind convolutions the running statistics of a norm."""
    if isinstance(each, Conv):
        kernel, filters = each.weight.transpose(2, 3, 1, 0), len(each.bias)
        depthwise = each.groups > 1 and each.groups == filters
        kernel = kernel.transpose(0, 1, 3, 2) if depthwise else kernel
        trained = (kernel, tf.ones(filters), tf.zeros(filters))
        return [tf.Variable(value) for value in trained], [
            tf.Variable(tf.zeros(filters)),
            tf.Variable(tf.ones(filters)),
        ]
    if isinstance(each, Gate):
        (narrow, wide), (first, second) = each.weights, each.biases
        return [tf.Variable(value) for value in (narrow.T, first, wide.T, second)], []
    return ([], []) if isinstance(each, Add | MaxPool) else ([tf.Variable(each.weight.T), tf.Variable(each.bias)], [])


def convolved(x, each, own, statistics):
    kernel, scale, shift = own
    edge, stride = each.padding, each.stride
    padding = [[0, 0], [edge, edge], [edge, edge], [0, 0]]
    if each.groups > 1:
        y = tf.nn.depthwise_conv2d(tf.pad(x, padding), kernel, [1, stride, stride, 1], "VALID")
    else:
        y = tf.nn.conv2d(x, kernel, stride, padding)
    mean, variance = statistics
    y, seen_mean, seen_variance = tf.compat.v1.nn.fused_batch_norm(
        y, scale, shift, epsilon=EPSILON, is_training=True, exponential_avg_factor=1.0
    )
    mean.assign(KEPT * mean + (1 - KEPT) * seen_mean)
    variance.assign(KEPT * variance + (1 - KEPT) * seen_variance)
    return ACTIVATIONS[each.activation](y)


def network(operations, held, x):
    """The list of operations, traced."""
    values = [x]
    for each, (own, statistics) in zip(operations, held, strict=True):
        x = values[each.x]
        if isinstance(each, Conv):
            y = convolved(x, each, own, statistics)
        elif isinstance(each, Add):
            y = ACTIVATIONS[each.activation](x + values[each.other])
        elif isinstance(each, MaxPool):
            y = tf.nn.max_pool2d(x, 3, 2, [[0, 0], [1, 1], [1, 1], [0, 0]])
        elif isinstance(each, Gate):
            hidden = tf.nn.silu(tf.matmul(tf.reduce_mean(x, (1, 2)), own[0]) + own[1])
            y = x * tf.sigmoid(tf.matmul(hidden, own[2]) + own[3])[:, None, None]
        else:
            y = tf.matmul(tf.reduce_mean(x, (1, 2)), own[0]) + own[1]
        values.append(y)
    return values[-1]


def bound(model, batch, xla):
    """Steps over the ring of pictures."""
    operations = NETWORKS[model]()
    held = [variables_of(each) for each in operations]
    trained = [each for own, _ in held for each in own]
    velocities = [tf.Variable(tf.zeros_like(each)) for each in trained]

    @partial(tf.function, jit_compile=xla, autograph=False)
    def step(x, target):
        with tf.GradientTape() as tape:
            logits = network(operations, held, x)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(target, logits))
        for weight, velocity, slope in zip(trained, velocities, tape.gradient(loss, trained), strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle, accum=velocity.handle, lr=RATE, grad=slope, momentum=MOMENTUM
            )
        return loss

    ring = zip(pictures(batch), labels(batch), strict=True)
    fed = [(tf.constant(x.transpose(0, 2, 3, 1)), tf.constant(y)) for x, y in ring]
    return [partial(lambda x, y: step(x, y).numpy(), *each) for each in fed]


def formulations_of(model, batch):
    """The formulations, bound to their data. XLA's grouped convolutions take minutes a batch: it has ResNet only."""
    found = {"function": partial(bound, model, batch, None)}
    if model == "resnet50":
        found["XLA"] = partial(bound, model, batch, True)
    return found


if __name__ == "__main__":
    serve(formulations_of)
