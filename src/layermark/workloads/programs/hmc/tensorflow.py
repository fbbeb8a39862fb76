"""The chain on TensorFlow: TensorFlow Probability's sampler (library), or a plain loop (tuned)."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from layermark.errors import Unsupported
from layermark.spec import Spec
from layermark.workloads.programs.base import Call, Implementation, chosen
from layermark.workloads.programs.hmc import START, HmcParams, outputs

ALGORITHM = "philox"
"""What TensorFlow's own kernels use on a CPU. Left to choose (`auto_select`), XLA takes one four times slower."""
UNROLLED_MOVES = 16
_NEEDED = ("tensorflow_probability", "tf_keras", "tree", "decorator", "cloudpickle")
_INSTALL = "pip install tensorflow-probability && pip install --no-deps tf-keras"

Chain = Callable[[Any], Any]


def prepare(spec: Spec, params: HmcParams) -> TensorFlowChain:
    """Trace and compile the chain."""
    if spec.subnormals != "flush":
        reason = "tensorflow always flushes subnormals; use --subnormals flush"
        raise Unsupported(reason, code="always_flushes", instead={"subnormals": "flush"})
    if params.generator == "fast":
        raise Unsupported("tensorflow has no faster generator than its usual one; use --generator default")
    _keep_to_budget(spec.threads)
    return TensorFlowChain(spec, params)


def _keep_to_budget(threads: int) -> None:
    """Leave the caller room in the thread budget: it takes its share of every parallel loop beside the pool."""
    with contextlib.suppress(RuntimeError):  # the pool was started earlier in this process
        tf.config.threading.set_intra_op_parallelism_threads(max(1, threads - 1))


class TensorFlowChain(Implementation):
    """All transitions of a call are one loop inside a `tf.function`, with or without XLA."""

    def __init__(self, spec: Spec, params: HmcParams) -> None:
        tuned = spec.formulation == "tuned"
        chain = tuned_chain(params) if tuned else library_chain(params)
        seed = spec.seed % 2**31
        executions = {"function": lambda: _compiled(chain, seed, False), "xla": lambda: _compiled(chain, seed, True)}
        self._call, told = chosen(spec, executions)
        self._settings = told | {
            "formulation": spec.formulation,
            "library": "none" if tuned else _library(),
            "generator": f"stateless, {ALGORITHM if tuned else 'auto_select'}",
            "random_numbers": "drawn first in every call" if tuned else "drawn in every transition",
            "pool_threads": str(tf.config.threading.get_intra_op_parallelism_threads()),
            "compute_type": "float32",
            "output_type": self._call(0).dtype.name,
            "subnormals": "flush",
        }

    @property
    def settings(self) -> Mapping[str, str]:
        """What was built."""
        return self._settings

    def call(self, number: int) -> Any:
        """One call, its states fetched; its number is the second half of the seed."""
        return self._call(number)

    def outputs(self, result: Any) -> Mapping[str, Any]:
        """The states of a call."""
        return outputs(result)


def log_density(x: Any) -> Any:
    """Up to a constant."""
    return -x - x * x


def _compiled(chain: Chain, seed: int, xla: bool) -> Call:
    signature = [tf.TensorSpec([2], tf.int32)]
    function = tf.function(chain, input_signature=signature, jit_compile=xla)
    return lambda number: function(np.array([seed, number], "int32")).numpy()


def _library() -> str:
    return f"tensorflow-probability {importlib.metadata.version('tensorflow-probability')}"


def library_chain(params: HmcParams) -> Chain:
    """`sample_chain` over `HamiltonianMonteCarlo`, as its documentation shows."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"hmc on tensorflow needs {missing[0]}: {_INSTALL}; or use --formulation tuned"
        raise Unsupported(reason, instead={"formulation": "tuned"})
    import tensorflow_probability as tfp  # type: ignore[import-untyped]

    inner = tfp.mcmc.HamiltonianMonteCarlo(log_density, params.step_size, params.leapfrog_steps)
    kernel = _forgetful(tfp.mcmc.TransitionKernel, inner)

    def run(seed: Any) -> Any:
        start = tf.fill(params.shape, tf.constant(START))
        return tfp.mcmc.sample_chain(params.hmc_steps, start, kernel=kernel, trace_fn=None, seed=seed)

    return run


def _forgetful(base: Any, inner: Any) -> Any:
    """A kernel that computes density and gradient at the start of every transition again, as the workload asks."""

    class Forgetful(base):  # type: ignore[misc]
        is_calibrated = True

        def one_step(self, state: Any, results: Any, seed: Any = None) -> Any:
            return inner.one_step(state, inner.bootstrap_results(state), seed=seed)[0], results

        def bootstrap_results(self, state: Any) -> Any:
            return ()

    return Forgetful()


def tuned_chain(params: HmcParams) -> Chain:
    """The same transitions by hand, with one draw per call: kernels of a generator cost more than a transition."""
    shape = (params.hmc_steps, *params.shape)

    def run(seed: Any) -> Any:
        first, second = tf.unstack(tf.random.split(seed, 2, alg=ALGORITHM))
        momenta = tf.random.stateless_normal(shape, first, alg=ALGORITHM)
        log_uniforms = tf.math.log(tf.random.stateless_uniform(shape, second, alg=ALGORITHM))

        def turn(index: Any, x: Any, states: Any) -> Any:
            x = transition(x, momenta[index], log_uniforms[index], params)
            return index + 1, x, states.write(index, x)

        empty = tf.TensorArray(tf.float32, params.hmc_steps, element_shape=params.shape)
        begin = (tf.constant(0), tf.fill(params.shape, tf.constant(START)), empty)
        return tf.while_loop(lambda index, *_: index < params.hmc_steps, turn, begin, parallel_iterations=1)[2].stack()

    return run


def transition(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
    """The next state."""
    step = params.step_size
    y, q = _moved(x, momentum + step / 2 * _slope(x), params)
    y = y + step * q
    q = q + step / 2 * _slope(y)
    lost = log_density(y) - log_density(x) + (momentum * momentum - q * q) / 2
    return tf.where(log_uniform < lost, y, x)


def _moved(x: Any, momentum: Any, params: HmcParams) -> tuple[Any, Any]:
    """Every move but the last, each with a whole kick."""
    moves, step = params.leapfrog_steps - 1, params.step_size

    def move(y: Any, q: Any) -> tuple[Any, Any]:
        y = y + step * q
        return y, q + step * _slope(y)

    if moves < UNROLLED_MOVES:
        for _ in range(moves):
            x, momentum = move(x, momentum)
        return x, momentum
    return tf.while_loop(  # type: ignore[no-any-return]
        lambda *_: True, move, (x, momentum), maximum_iterations=moves, parallel_iterations=1
    )


def _slope(x: Any) -> Any:
    return -1 - 2 * x
