"""The workloads by hand in TensorFlow: functions of a tape, XLA, and sessions on the caller's thread."""

import ctypes
import itertools
import os
from functools import partial

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from native.data import HMC_STEPS, LEAPFROG_STEPS, RATE, REPEATS, draw
from native.serve import serve

v1 = tf.compat.v1
THREADS = int(os.environ["TF_NUM_INTRAOP_THREADS"])


def flush_subnormals():
    """On the caller's thread; those of the pool always do."""
    library, state = ctypes.CDLL("libm.so.6"), (ctypes.c_uint32 * 8)()
    library.fegetenv(state)
    state[7] |= 0x8040
    library.fesetenv(state)


def turned(weights):
    """Weights as TensorFlow has them: inputs first; kernels height, width, channels, filters."""
    axes = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}
    return {name: np.ascontiguousarray(each.transpose(axes[each.ndim])) for name, each in weights.items()}


def aligned(array):
    """An array at an address that a session takes without a copy; pictures channels last."""
    array = array.transpose(0, 2, 3, 1) if array.ndim == 4 else array
    memory = np.empty(array.nbytes + 64, "uint8")
    begin = -memory.ctypes.data % 64
    found = memory[begin : begin + array.nbytes].view("float32").reshape(array.shape)
    found[...] = array
    return found


def dense(weights, x):
    return tf.nn.bias_add(tf.matmul(x, weights["weight"]), weights["bias"])


def conv(weights, x):
    padding = [[0, 0], [3, 3], [3, 3], [0, 0]]
    return tf.nn.bias_add(tf.nn.conv2d(x, weights["weight"], 2, padding), weights["bias"])


def conv_padded(weights, x):
    wide = tf.pad(x, [[0, 0], [3, 3], [3, 3], [0, 0]])
    return tf.nn.bias_add(tf.nn.conv2d(wide, weights["weight"], 2, "VALID"), weights["bias"])


def folded_kernel(weights):
    """A kernel of 4 x 4 with stride 2 on 4 channels is one of 2 x 2 with stride 1 on 16."""
    kernel = tf.reshape(weights["weight"], (2, 2, 2, 2, 4, 64))
    return tf.reshape(tf.transpose(kernel, (0, 2, 1, 3, 4, 5)), (2, 2, 16, 64))


def conv_folded(weights, x):
    wide = tf.nn.space_to_depth(tf.pad(x, [[0, 0], [3, 3], [3, 3], [0, 0]]), 2)
    return tf.nn.bias_add(tf.nn.conv2d(wide, folded_kernel(weights), 1, "VALID"), weights["bias"])


def grouped(weights, x):
    for index in range(REPEATS):
        kernel = tf.reshape(weights[f"weight{index}"], (3, 3, 64, 1))
        x = tf.nn.depthwise_conv2d(x, kernel, (1, 1, 1, 1), "SAME")
    return x


def grouped_plain(weights, x):
    for index in range(REPEATS):
        x = tf.nn.conv2d(x, weights[f"weight{index}"], 1, "SAME")
    return x


def shifted(weights, x):
    """Nine shifted multiplies and adds, for XLA, which has no fast path for groups."""
    for index in range(REPEATS):
        kernel, wide = weights[f"weight{index}"], tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
        x = tf.add_n([wide[:, i : i + 56, j : j + 56] * kernel[i, j, 0] for i in range(3) for j in range(3)])
    return x


def rnn_step(weights, row, state):
    return (tf.tanh(row + tf.matmul(state[0], weights["recurrent"])),)


def gru_step(weights, row, state):
    (h,) = state
    xr, xz, xn = tf.split(row, 3, 1)
    hr, hz, hn = tf.split(tf.matmul(h, weights["recurrent"]), 3, 1)
    n = tf.tanh(xn + tf.sigmoid(xr + hr) * (hn + weights["recurrent_bias"]))
    return (n + tf.sigmoid(xz + hz) * (h - n),)


def lstm_step(weights, row, state):
    h, c = state
    i, f, g, o = tf.split(row + tf.matmul(h, weights["recurrent"]), 4, 1)
    c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
    return tf.sigmoid(o) * tf.tanh(c), c


STEPS = {"rnn": rnn_step, "gru": gru_step, "lstm": lstm_step}


def projected(weights, x):
    rows = tf.nn.bias_add(tf.matmul(tf.reshape(x, (-1, x.shape[2])), weights["weight"]), weights["bias"])
    return tf.reshape(rows, (x.shape[0], x.shape[1], -1))


def start(cell, weights):
    zeros = tf.zeros((1, weights["recurrent"].shape[0]))
    return (zeros,) * (2 if cell == "lstm" else 1)


def unrolled(cell, weights, x):
    state, rows = start(cell, weights), []
    for row in tf.unstack(projected(weights, x)):
        state = STEPS[cell](weights, row, state)
        rows.append(state[0])
    return tf.stack(rows)


def looped(cell, weights, x):
    steps, rows = x.shape[0], projected(weights, x)
    rows = tf.TensorArray(tf.float32, steps).unstack(rows)
    made = tf.TensorArray(tf.float32, steps, element_shape=(1, weights["recurrent"].shape[0]))

    def turn(index, made, *state):
        state = STEPS[cell](weights, rows.read(index), state)
        return index + 1, made.write(index, state[0]), *state

    begin = (tf.constant(0), made, *start(cell, weights))
    return tf.while_loop(lambda index, *_: index < steps, turn, begin, maximum_iterations=steps)[1].stack()


def block_lstm(weights, x):
    """TensorFlow's own kernel for a whole sequence."""
    (zeros, _), peephole = start("lstm", weights), tf.zeros(weights["recurrent"].shape[0])
    both = tf.concat([weights["weight"], weights["recurrent"]], 0)
    named = {"cs_prev": zeros, "h_prev": zeros, "wci": peephole, "wcf": peephole, "wco": peephole}
    return tf.raw_ops.BlockLSTMV2(seq_len_max=np.int64(x.shape[0]), x=x, w=both, b=weights["bias"], **named).h


def stacked(layer, weights, x):
    for suffix in "12":
        x = layer({name: weights[name + suffix] for name in ("weight", "recurrent", "bias")}, x)
    return tf.nn.bias_add(tf.matmul(x[-1], weights["weight"]), weights["bias"])


FUNCTIONS = {
    "dense": {"matmul": dense},
    "conv": {"conv2d": conv, "pad, conv2d": conv_padded, "folded to 16 channels": conv_folded},
    "grouped_conv": {"depthwise": grouped, "conv2d": grouped_plain, "shifted multiplies": shifted},
    "rnn": {"unrolled": partial(unrolled, "rnn"), "while": partial(looped, "rnn")},
    "gru": {"unrolled": partial(unrolled, "gru"), "while": partial(looped, "gru")},
    "lstm": {"unrolled": partial(unrolled, "lstm"), "while": partial(looped, "lstm"), "BlockLSTM": block_lstm},
    "lstm_multi": {"while": partial(stacked, partial(looped, "lstm")), "BlockLSTM": partial(stacked, block_lstm)},
}
ONLY_GRAPH = ("BlockLSTM",)
"""Kernels that XLA does not have."""


def keras(workload, data, xla):
    """Keras layers called from a function, as the documentation has them."""
    layers = {"rnn": tf.keras.layers.SimpleRNN, "gru": tf.keras.layers.GRU, "lstm": tf.keras.layers.LSTM}
    layer = tf.keras.layers.Dense(1024) if workload == "dense" else layers[workload](128, return_sequences=True)
    call = tf.function(lambda x: layer(x), jit_compile=xla)
    ring = [tf.constant(x if x.ndim == 2 else x.transpose(1, 0, 2)) for (x,) in data.ring]
    return [partial(fetched, call, x) for x in ring]


def fetched(call, *given):
    return call(*given).numpy()


def functional(function, data, xla):
    """A concrete function on resident tensors, weights captured as constants."""
    weights = {name: tf.constant(each) for name, each in turned(data.weights).items()}
    ring = [tf.constant(aligned(x)) for (x,) in data.ring]
    call = tf.function(partial(function, weights), jit_compile=xla, autograph=False)
    call = call.get_concrete_function(tf.TensorSpec(ring[0].shape))
    return [partial(fetched, call, x) for x in ring]


def session_for(xla, caller=True):
    """Operations on the caller's thread (or on one of a pool), kernels on the pool."""
    config = v1.ConfigProto(inter_op_parallelism_threads=-1 if caller else 1, intra_op_parallelism_threads=THREADS)
    config.graph_options.rewrite_options.disable_meta_optimizer = xla
    return v1.Session(graph=tf.Graph(), config=config)


def entry(session, feeds, fetches):
    """The session's C++ entry: `run` and `make_callable` check names and shapes on every call."""
    names = config_pb2.CallableOptions(feed=[each.name for each in feeds], fetch=[each.name for each in fetches])
    return session._make_callable_from_options(names)


def in_session(function, data, xla, caller=True):
    """A frozen graph in a session that is fed aligned arrays."""
    session, weights = session_for(xla, caller), turned(data.weights)
    ring = [aligned(x) for (x,) in data.ring]

    def body(x):
        return tf.identity(function({name: tf.constant(each) for name, each in weights.items()}, x))

    with session.graph.as_default():
        x = v1.placeholder(tf.float32, ring[0].shape)
        y = tf.function(body, jit_compile=True, autograph=False)(x) if xla else body(x)
    call = entry(session, [x], [y])
    return [partial(call, x) for x in ring]


def loss_of(workload, y, target):
    if workload in STEPS:
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(target, y))
    return tf.reduce_mean(tf.math.squared_difference(y, target))


def trained(workload, function, data, xla):
    """A function with a tape that moves variables."""
    variables = {name: tf.Variable(each) for name, each in turned(data.weights).items()}
    ring = [tuple(tf.constant(aligned(each)) for each in batch) for batch in data.ring]

    @partial(tf.function, jit_compile=xla, autograph=False)
    def step(x, target):
        with tf.GradientTape() as tape:
            loss = loss_of(workload, function({n: each.read_value() for n, each in variables.items()}, x), target)
        for variable, slope in zip(variables.values(), tape.gradient(loss, list(variables.values())), strict=True):
            variable.assign_sub(RATE * slope)
        return loss

    call = step.get_concrete_function(*(tf.TensorSpec(each.shape) for each in ring[0]))
    return [partial(fetched, call, *batch) for batch in ring]


def trained_in_session(workload, function, data, xla):
    """The same in a session."""
    session, weights = session_for(xla), turned(data.weights)
    ring = [tuple(aligned(each) for each in batch) for batch in data.ring]
    with session.graph.as_default():
        variables = {name: tf.Variable(tf.zeros(each.shape)) for name, each in weights.items()}
        feeds = [v1.placeholder(tf.float32, each.shape) for each in ring[0]]
        fed = {name: v1.placeholder(tf.float32, each.shape) for name, each in weights.items()}
        assigns = {name: variables[name].assign(each) for name, each in fed.items()}

        def body(x, target):
            held = {name: each.read_value() for name, each in variables.items()}
            loss = loss_of(workload, function(held, x), target)
            slopes = tf.gradients(loss, list(held.values()))
            with tf.control_dependencies(slopes):
                moves = [
                    tf.raw_ops.ResourceApplyGradientDescent(var=each.handle, alpha=RATE, delta=slope)
                    for each, slope in zip(variables.values(), slopes, strict=True)
                ]
            with tf.control_dependencies(moves):
                return tf.identity(loss)

        loss = tf.function(body, jit_compile=True, autograph=False)(*feeds) if xla else body(*feeds)
        session.run(v1.variables_initializer(list(variables.values())))
        session.run(list(assigns.values()), {fed[name]: each for name, each in weights.items()})
    call = entry(session, feeds, [loss])
    return [partial(call, *batch) for batch in ring]


def slope(x):
    return -1 - 2 * x


def transition(x, p, log_uniform):
    y, q = x, p + 0.5 * slope(x)
    for _ in range(LEAPFROG_STEPS - 1):
        y = y + q
        q = q + slope(y)
    y = y + q
    q = q + 0.5 * slope(y)
    return tf.where(log_uniform < x + x * x - y - y * y + (p * p - q * q) / 2, y, x)


def chain_drawn_first(seed):
    momenta = tf.random.stateless_normal([HMC_STEPS], seed, alg="philox")
    logs = tf.math.log(tf.random.stateless_uniform([HMC_STEPS], seed + 1, alg="philox"))
    states = tf.TensorArray(tf.float32, HMC_STEPS, element_shape=())

    def turn(index, x, states):
        x = transition(x, momenta[index], logs[index])
        return index + 1, x, states.write(index, x)

    begin = (tf.constant(0), tf.constant(1.0), states)
    return tf.while_loop(lambda index, *_: index < HMC_STEPS, turn, begin)[2].stack()


def chain_probability(seed):
    import tensorflow_probability as tfp

    kernel = tfp.mcmc.HamiltonianMonteCarlo(lambda x: -x - x * x, 1.0, LEAPFROG_STEPS)
    return tfp.mcmc.sample_chain(HMC_STEPS, tf.constant(1.0), kernel=kernel, trace_fn=None, seed=seed)


def chained(function, xla):
    call = tf.function(function, input_signature=[tf.TensorSpec([2], tf.int32)], jit_compile=xla)
    count = itertools.count()
    return [lambda: call(np.array([7, next(count)], "int32")).numpy()]


CHAINS = {"drawn first": chain_drawn_first, "TFP": chain_probability}
EXECUTIONS = {"function": False, "XLA": True}


def chains():
    found = {f"{name}, XLA": partial(chained, each, True) for name, each in CHAINS.items()}
    return found | {"drawn first, function": partial(chained, chain_drawn_first, False)}


def inference(workload, data):
    found = {}
    for name, function in FUNCTIONS[workload].items():
        for word, xla in EXECUTIONS.items():
            if not (xla and name in ONLY_GRAPH):
                found[f"{name}, {word}"] = partial(functional, function, data, xla)
                found[f"{name}, {word}, session"] = partial(in_session, function, data, xla)
    if workload in STEPS or workload == "dense":
        found |= {f"Keras, {word}": partial(keras, workload, data, xla) for word, xla in EXECUTIONS.items()}
    return found


def training(workload, data):
    found = {}
    for name, function in FUNCTIONS[workload].items():
        for word, xla in EXECUTIONS.items():
            if name not in ONLY_GRAPH:
                found[f"{name}, {word}"] = partial(trained, workload, function, data, xla)
                found[f"{name}, {word}, session"] = partial(trained_in_session, workload, function, data, xla)
    return found


def formulations_of(workload, mode):
    """The formulations, bound to their data."""
    flush_subnormals()
    if workload == "hmc":
        return chains()
    data = draw(workload, mode)
    return training(workload, data) if mode == "train" else inference(workload, data)


if __name__ == "__main__":
    serve(formulations_of)
