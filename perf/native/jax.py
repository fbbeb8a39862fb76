"""The workloads by hand in JAX: plain `jax.numpy` and `jax.lax` under `jit`."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from native.data import HMC_STEPS, LEAPFROG_STEPS, RATE, REPEATS, draw
from native.serve import serve

jax.config.update("jax_default_matmul_precision", "highest")
SYNCHRONOUS = "jax_cpu_enable_async_dispatch"
NHWC = ("NHWC", "HWIO", "NHWC")


def turned(weights):
    """Weights as JAX code has them: inputs first; kernels height, width, channels, filters."""
    axes = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}
    return {name: jnp.asarray(each.transpose(axes[each.ndim]).copy()) for name, each in weights.items()}


def dense(weights, x):
    return x @ weights["weight"] + weights["bias"]


def dense_transposed(weights, x):
    return lax.dot_general(x, weights["weight"], (((1,), (1,)), ((), ()))) + weights["bias"]


def conv(weights, x):
    y = lax.conv_general_dilated(x, weights["weight"], (2, 2), ((3, 3), (3, 3)), dimension_numbers=NHWC)
    return y + weights["bias"]


def unshuffled(x):
    """Squares of 2 x 2 pixels become channels."""
    batch, rows, columns, channels = x.shape
    parted = x.reshape(batch, rows // 2, 2, columns // 2, 2, channels).transpose(0, 1, 3, 2, 4, 5)
    return parted.reshape(batch, rows // 2, columns // 2, 4 * channels)


def padded(x, by):
    """The barrier keeps the padding out of the loops that read it: its bounds checks would not be vectorised."""
    return lax.optimization_barrier(jnp.pad(x, ((0, 0), (by, by), (by, by), (0, 0))))


def folded_kernel(weights):
    """A kernel of 4 x 4 with stride 2 on 4 channels is one of 2 x 2 with stride 1 on 16."""
    return unshuffled(weights["weight"].transpose(3, 0, 1, 2)).transpose(1, 2, 3, 0)


def conv_folded(weights, x):
    wide = lax.optimization_barrier(unshuffled(padded(x, 3)))
    y = lax.conv_general_dilated(wide, folded_kernel(weights), (1, 1), "VALID", dimension_numbers=NHWC)
    return y + weights["bias"]


def conv_multiplied(weights, x):
    """Four matrix products over the folded picture."""
    wide, kernel = lax.optimization_barrier(unshuffled(padded(x, 3))), folded_kernel(weights)
    rows, columns = wide.shape[1] - 1, wide.shape[2] - 1
    taps = [wide[:, i : i + rows, j : j + columns] for i in range(2) for j in range(2)]
    return lax.optimization_barrier(jnp.concatenate(taps, -1)) @ kernel.reshape(64, 64) + weights["bias"]


def grouped(weights, x):
    for index in range(REPEATS):
        kernel = weights[f"weight{index}"]
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=64)
    return x


def shifted(weights, x):
    """Nine shifted multiplies and adds instead of a convolution that XLA has no fast path for."""
    for index in range(REPEATS):
        x = multiplied(padded(x, 1), weights[f"weight{index}"])
    return lax.optimization_barrier(x)


def multiplied(wide, kernel):
    return sum(wide[:, i : i + 56, j : j + 56] * kernel[i, j, 0] for i in range(3) for j in range(3))


@jax.custom_vjp
def depthwise(x, kernel):
    return depthwise_forward(x, kernel)[0]


def depthwise_forward(x, kernel):
    wide = padded(x, 1)
    return lax.optimization_barrier(multiplied(wide, kernel)), (wide, kernel)


def depthwise_backward(kept, slope):
    """The kernel's row by row, summed at the end: XLA vectorises no sum over a picture to one value per channel."""
    wide, kernel = kept

    def add_row(row, sums):
        own, band = lax.dynamic_slice_in_dim(slope, row, 1, 1), lax.dynamic_slice_in_dim(wide, row, 3, 1)
        seen = [band[:, i : i + 1, j : j + 56] for i in range(3) for j in range(3)]
        return [total + each * own for total, each in zip(sums, seen, strict=True)]

    sums = lax.fori_loop(0, 56, add_row, [jnp.zeros_like(slope[:, :1])] * 9)
    back = lax.optimization_barrier(multiplied(padded(slope, 1), kernel[::-1, ::-1]))
    return back, jnp.stack([jnp.sum(each, (0, 1, 2)) for each in sums]).reshape(kernel.shape)


depthwise.defvjp(depthwise_forward, depthwise_backward)


def shifted_both_ways(weights, x):
    """Shifted multiplies in the backward pass, too, which the derivative of a slice and of padding are not."""
    for index in range(REPEATS):
        x = depthwise(x, weights[f"weight{index}"])
    return x


def rnn_step(weights, row, state):
    return (jnp.tanh(row + state[0] @ weights["recurrent"]),)


def gru_step(weights, row, state):
    (h,) = state
    xr, xz, xn = jnp.split(row, 3, 1)
    hr, hz, hn = jnp.split(h @ weights["recurrent"], 3, 1)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + r * (hn + weights["recurrent_bias"]))
    return ((1 - z) * n + z * h,)


def lstm_step(weights, row, state):
    h, c = state
    i, f, g, o = jnp.split(row + h @ weights["recurrent"], 4, 1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


STEPS = {"rnn": rnn_step, "gru": gru_step, "lstm": lstm_step}


def recurrence(cell, weights, x, unroll=1):
    """One product for all inputs, then the loop."""
    hidden = weights["recurrent"].shape[0]
    zeros = jnp.zeros((x.shape[1], hidden))
    rows = (x.reshape(-1, x.shape[2]) @ weights["weight"] + weights["bias"]).reshape(*x.shape[:2], -1)

    def turn(state, row):
        state = STEPS[cell](weights, row, state)
        return state, state[0]

    return lax.scan(turn, (zeros,) * (2 if cell == "lstm" else 1), rows, unroll=unroll)[1]


def joined(cell, weights, x):
    """One product per time step with input and state side by side, written out."""
    both = jnp.concatenate([weights["weight"], weights["recurrent"]])
    zeros, rows = jnp.zeros((x.shape[1], weights["recurrent"].shape[0])), []
    h = c = zeros
    for row in x:
        gates = jnp.concatenate([row, h], 1) @ both + weights["bias"]
        if cell == "rnn":
            h = jnp.tanh(gates)
        else:
            i, f, g, o = jnp.split(gates, 4, 1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
        rows.append(h)
    return jnp.stack(rows)


def stacked(weights, x, unroll=1):
    for suffix in "12":
        own = {name: weights[name + suffix] for name in ("weight", "recurrent", "bias")}
        x = recurrence("lstm", own, x, unroll)
    return x[-1] @ weights["weight"] + weights["bias"]


def together(weights, x):
    """Both layers in one loop."""
    first, second = ({name: weights[name + suffix] for name in ("weight", "recurrent", "bias")} for suffix in "12")
    zeros = jnp.zeros((x.shape[1], 256))
    rows = (x.reshape(-1, 16) @ first["weight"] + first["bias"]).reshape(*x.shape[:2], -1)

    def turn(states, row):
        one = lstm_step(first, row, states[0])
        two = lstm_step(second, one[0] @ second["weight"] + second["bias"], states[1])
        return (one, two), None

    (_, (h, _)), _ = lax.scan(turn, ((zeros, zeros), (zeros, zeros)), rows)
    return h @ weights["weight"] + weights["bias"]


def density(x):
    return -x - x * x


def chain_transition(x, given):
    p, log_uniform = given
    slope = jax.grad(density)
    y, q = x, p + 0.5 * slope(x)
    for _ in range(LEAPFROG_STEPS - 1):
        y = y + q
        q = q + slope(y)
    y = y + q
    q = q + 0.5 * slope(y)
    x = jnp.where(log_uniform < density(y) - density(x) + (p * p - q * q) / 2, y, x)
    return x, x


def chain_drawn_first(key):
    one, two = jax.random.split(key)
    drawn = jax.random.normal(one, (HMC_STEPS,)), jnp.log(jax.random.uniform(two, (HMC_STEPS,)))
    return lax.scan(chain_transition, jnp.float32(1), drawn)[1]


def chain_drawn_inside(key):
    def turn(x, key):
        one, two = jax.random.split(key)
        return chain_transition(x, (jax.random.normal(one), jnp.log(jax.random.uniform(two))))

    return lax.scan(turn, jnp.float32(1), jax.random.split(key, HMC_STEPS))[1]


def chain_blackjax(key):
    import blackjax

    kernel = blackjax.hmc(density, 1.0, jnp.ones(1), LEAPFROG_STEPS)

    def turn(state, key):
        state, _ = kernel.step(key, state)
        return state, state.position

    return lax.scan(turn, kernel.init(jnp.float32(1)), jax.random.split(key, HMC_STEPS))[1]


def chained(function):
    """A new key for every call."""
    call, count = jax.jit(lambda number: function(jax.random.fold_in(jax.random.key(0), number))), itertools.count()
    return [lambda: call(next(count)).block_until_ready()]


FUNCTIONS = {
    "dense": {"x @ w": dense, "x @ w.T": dense_transposed},
    "conv": {"conv": conv, "folded to 16 channels": conv_folded, "products": conv_multiplied},
    "grouped_conv": {"shifted multiplies": shifted, "both ways": shifted_both_ways, "conv": grouped},
    "rnn": {"scan": partial(recurrence, "rnn"), "unrolled": partial(recurrence, "rnn", unroll=True)},
    "gru": {"scan": partial(recurrence, "gru"), "unrolled": partial(recurrence, "gru", unroll=True)},
    "lstm": {"scan": partial(recurrence, "lstm"), "unrolled": partial(recurrence, "lstm", unroll=True)},
    "lstm_multi": {"scan": stacked, "scan, 4 steps a turn": partial(stacked, unroll=4), "one scan": together},
}
FUNCTIONS["rnn"] |= {"joined": partial(joined, "rnn")}
FUNCTIONS["lstm"] |= {"joined": partial(joined, "lstm")}
CHAINS = {"drawn first": chain_drawn_first, "drawn inside": chain_drawn_inside, "BlackJAX": chain_blackjax}


def arrays(batch):
    """Inputs on the device; pictures channels last."""
    return tuple(jnp.array(each.transpose(0, 2, 3, 1) if each.ndim == 4 else each, copy=True) for each in batch)


def weights_for(name, data):
    if name == "x @ w.T":
        return {key: jnp.asarray(each) for key, each in data.weights.items()}
    return turned(data.weights)


def waiting(call, *given):
    """A call that returns when its work is done."""
    return lambda: call(*given).block_until_ready()


def inference(name, function, data):
    """Weights as arguments: as constants XLA folds them for minutes, and multiplies no faster."""
    weights, call = weights_for(name, data), jax.jit(function)
    return [waiting(call, weights, *arrays(batch)) for batch in data.ring]


def loss_of(workload, y, target):
    if workload in STEPS:
        return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(y), -1))
    return jnp.mean((y - target) ** 2)


def training(workload, name, function, data):
    """Gradient and update in one compiled step that overwrites the weights."""

    @partial(jax.jit, donate_argnums=0)
    def step(weights, x, target):
        loss, slopes = jax.value_and_grad(lambda moving: loss_of(workload, function(moving, x), target))(weights)
        return jax.tree.map(lambda old, slope: old - RATE * slope, weights, slopes), loss

    held = [weights_for(name, data)]

    def one(x, target):
        held[0], loss = step(held[0], x, target)
        loss.block_until_ready()

    return [partial(one, *arrays(batch)) for batch in data.ring]


def formulations_of(workload, mode):
    """The formulations, bound to their data."""
    jax.config.update(SYNCHRONOUS, False)  # a call then runs in the thread that makes it
    if workload == "hmc":
        return {name: partial(chained, each) for name, each in CHAINS.items()}
    data, functions = draw(workload, mode), FUNCTIONS[workload]
    if mode == "train":
        return {name: partial(training, workload, name, each, data) for name, each in functions.items()}
    return {name: partial(inference, name, each, data) for name, each in functions.items()}


if __name__ == "__main__":
    serve(formulations_of)
