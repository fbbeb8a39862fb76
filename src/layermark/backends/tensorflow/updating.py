"""Whole updates in TensorFlow: variables beside the weights, and the kernels that move them inside the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from layermark.backends.tensorflow.network import Network
from layermark.errors import Unsupported
from layermark.training import names
from layermark.training.update import Update

Tensor = Any
Tensors = dict[str, Tensor]
Operations = list[Any]


def refuse_unknown(update: Update) -> None:
    """Raise Unsupported for updates that are not written here."""
    if update.dynamic_scaling:
        reason = "tensorflow has no dynamic loss scale here; use --loss-scaling with a number"
        raise Unsupported(reason, code="dynamic_scaling", instead={"backend": "torch"})


class Trainer:
    """The optimiser's state, gathered gradients and sums of one graph, and the operations that move them.

    `weights` are the variables of the parameters.
    """

    def __init__(self, update: Update, network: Network, weights: Mapping[str, tf.Variable]) -> None:
        self._update, self._weights, self._factors = update, weights, update.factors(update.loss_scaling)
        self._sharing = network.sharing
        self._names, kind = update.trained(network.graph.parameters), network.types.loss
        slots = {f"{name}/{slot}": weights[name] for name in self._names for slot in update.rule.slots}
        self.state = {name: _like(each) for name, each in slots.items()}
        self.gathers = update.micro_batches > 1
        """Whether an update has several micro-batches."""
        self._total = {name: _like(weights[name]) for name in self._names} if self.gathers else {}
        self._waiting = {name: _like(weights[name]) for name in update.gathered_statistics(network.graph.parameters)}
        self.sums = {name: tf.Variable(tf.zeros((), kind)) for name in ("loss", "right")}
        self._knobs = {name: tf.Variable(tf.zeros((), kind)) for name in ("rate", "share")}

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """All that is not a parameter; names without a slash are those of numbers."""
        totals = {f"{name}/total": each for name, each in (self._total | self._waiting).items()}
        return {**self.state, **totals, **self.sums, **self._knobs}

    def blank(self) -> dict[str, Any]:
        """Return the variables as they are before the first update, but for the knobs."""
        fills = self._update.rule.slots
        return {
            name: np.full(each.shape, fills.get(name.rpartition("/")[2], 0.0), each.dtype.as_numpy_dtype)
            for name, each in self.variables.items()
            if name not in self._knobs
        }

    def moved(
        self, loss: Tensor, right: Tensor | None, held: Mapping[str, Tensor], moves: Tensors, *, last: bool
    ) -> Operations:
        """The operations of one micro-batch: sums, statistics, and the gradients gathered or the weights moved."""
        gradients = self._mean(self._gradients(loss, held), held)
        if last and self._sharing is not None:
            gradients, moves = self._sharing.averaged(gradients, moves)
        counted = [] if right is None else [right]
        # The variables are read before anything moves them.
        with tf.control_dependencies([*gradients.values(), *moves.values(), *counted]):
            done = [self.sums["loss"].assign_add(loss).op]
            done += [self.sums["right"].assign_add(each).op for each in counted]
            done += self._move_statistics(moves, last=last)
            if not last:
                return done + [self._total[name].assign(each).op for name, each in gradients.items()]
            done += [each.assign(tf.zeros_like(each)).op for each in self._total.values()]
            return done + self._updated(gradients, held)

    def _move_statistics(self, moves: Tensors, *, last: bool) -> Operations:
        """Statistics after a micro-batch; those that wait for the others of an update move towards the mean of all."""
        done = []
        for name, each in moves.items():
            variable, waiting = self._weights[name], self._waiting.get(name)
            after = tf.cast(each, variable.dtype)
            if waiting is not None:
                after = waiting.read_value() + tf.cast(self._knobs["share"].read_value(), variable.dtype) * after
            if waiting is None or last:
                done.append(variable.assign(after).op)
            if waiting is not None:
                with tf.control_dependencies([after]):
                    done.append(waiting.assign(tf.zeros_like(after) if last else after).op)
        return done

    def _gradients(self, loss: Tensor, held: Mapping[str, Tensor]) -> Tensors:
        """Gradients of a multiple of the loss."""
        read = [held[name] for name in self._names]
        scale = self._update.loss_scaling
        seed = None if scale == 1 else tf.constant(scale, loss.dtype, loss.shape)
        found = tf.gradients(loss, read, seed, unconnected_gradients="zero")
        return dict(zip(self._names, found, strict=True))

    def _mean(self, gradients: Tensors, held: Mapping[str, Tensor]) -> Tensors:
        """What the micro-batches of an update have said so far."""
        factor = self._factors.gradient
        own = gradients if factor == 1 else {name: each * factor for name, each in gradients.items()}
        own = self._pulled(own, held) if self._update.decay_per == "micro-batch" else own
        if not self._total:
            return own
        share = self._knobs["share"].read_value()
        return {name: self._total[name].read_value() + tf.cast(share, each.dtype) * each for name, each in own.items()}

    def _pulled(self, gradients: Tensors, held: Mapping[str, Tensor]) -> Tensors:
        decay = self._factors.decay
        return {
            name: each + decay * held[name] if decay and names.is_decayed(name) else each
            for name, each in gradients.items()
        }

    def _updated(self, mean: Tensors, held: Mapping[str, Tensor]) -> Operations:
        if self._update.clip_norm:
            mean = _clipped(mean, self._update.clip_norm / self._factors.rate)
        mean = mean if self._update.decay_per == "micro-batch" else self._pulled(mean, held)
        rate, move = self._knobs["rate"].read_value(), _RULES[self._update.optimiser]
        rate = rate if self._factors.rate == 1 else rate * self._factors.rate
        return [move(self, name, held[name], each, tf.cast(rate, each.dtype)) for name, each in mean.items()]

    def sgd(self, name: str, weight: Tensor, gradient: Tensor, rate: Tensor) -> Any:
        """Plain gradient descent."""
        handle = self._weights[name].handle
        return tf.raw_ops.ResourceApplyGradientDescent(var=handle, alpha=rate, delta=gradient)

    def momentum(self, name: str, weight: Tensor, gradient: Tensor, rate: Tensor) -> Any:
        """The kernel's velocity is ours: the rate is no part of it."""
        return tf.raw_ops.ResourceApplyMomentum(
            var=self._weights[name].handle,
            accum=self.state[f"{name}/momentum"].handle,
            lr=rate,
            grad=gradient,
            momentum=tf.constant(self._update.momentum, gradient.dtype),
        )

    def rmsprop(self, name: str, weight: Tensor, gradient: Tensor, rate: Tensor) -> Any:
        """The kernel has epsilon inside the root, and the rate in its velocity."""
        update, kind = self._update, gradient.dtype
        return tf.raw_ops.ResourceApplyRMSProp(
            var=self._weights[name].handle,
            ms=self.state[f"{name}/mean_square"].handle,
            mom=self.state[f"{name}/momentum"].handle,
            lr=rate,
            rho=tf.constant(update.rmsprop_decay, kind),
            momentum=tf.constant(update.momentum, kind),
            epsilon=tf.constant(update.rmsprop_epsilon, kind),
            grad=gradient,
        )

    def lars(self, name: str, weight: Tensor, gradient: Tensor, rate: Tensor) -> Any:
        """Momentum at a rate of the weight's own, unless its name is skipped."""
        update = self._update
        if names.holds(name, update.lars_skip):
            return self.momentum(name, weight, gradient, rate)
        own, slope = tf.norm(weight), tf.norm(gradient)
        below = slope + update.weight_decay * own + update.lars_epsilon
        usable, one = (own > 0) & (slope > 0), tf.ones_like(own)
        factor = tf.where(usable, update.lars_eeta * own / tf.where(usable, below, one), one)
        return self.momentum(name, weight, gradient + update.weight_decay * weight, rate * factor)


_RULES: Mapping[str, Callable[[Trainer, str, Tensor, Tensor, Tensor], Any]] = {
    "sgd": Trainer.sgd,
    "momentum": Trainer.momentum,
    "rmsprop": Trainer.rmsprop,
    "lars": Trainer.lars,
}


def _clipped(gradients: Tensors, longest: float) -> Tensors:
    """All gradients, shortened by one factor if together they are too long."""
    norm = tf.linalg.global_norm(list(gradients.values()))
    factor = longest / tf.maximum(norm, longest)
    return {name: each * factor for name, each in gradients.items()}


def _like(variable: tf.Variable) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape, variable.dtype))
