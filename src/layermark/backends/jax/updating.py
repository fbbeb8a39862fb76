"""Whole updates in JAX: optax where it computes the same, and plain code for LARS."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping

import jax.numpy as jnp
from jax import Array

from layermark.errors import Unsupported
from layermark.training import names
from layermark.training.update import Update

Named = dict[str, Array]
Slots = dict[str, Named]
"""The optimiser's state: of each kind, an array for each weight."""
Moved = tuple[Named, Slots]


def refuse_unknown(update: Update) -> None:
    """Raise Unsupported for updates that are not written here."""
    if update.dynamic_scaling:
        reason = "jax has no dynamic loss scale here; use --loss-scaling with a number"
        raise Unsupported(reason, code="dynamic_scaling", instead={"backend": "torch"})
    if update.rule.slots and importlib.util.find_spec("optax") is None:
        raise Unsupported(f"--optimiser {update.optimiser} on jax needs optax: pip install 'layermark[jax]'")


def gathered(update: Update, weights: Named, gradients: Named, total: Named, share: Array) -> Named:
    """Return what the micro-batches of an update have said so far; without a total this one is all of them."""
    factors = update.factors(update.loss_scaling)
    own = {name: each * factors.gradient for name, each in gradients.items()} if factors.gradient != 1 else gradients
    own = _pulled(own, weights, factors.decay) if update.decay_per == "micro-batch" else own
    return {name: total[name] + (share * own[name]).astype(each.dtype) for name, each in total.items()} or own


def updated(update: Update, weights: Named, mean: Named, slots: Slots, rate: Array) -> Moved:
    """Return the weights that the mean gradient moves, and the state after it."""
    factors = update.factors(update.loss_scaling)
    if update.clip_norm:
        mean = _clipped(mean, update.clip_norm / factors.rate)
    mean = mean if update.decay_per == "micro-batch" else _pulled(mean, weights, factors.decay)
    steps, slots = _RULES[update.optimiser](update, weights, mean, slots, rate * factors.rate)
    moved = {name: (weights[name] - each).astype(weights[name].dtype) for name, each in steps.items()}
    return moved, {
        slot: {name: each.astype(weights[name].dtype) for name, each in own.items()} for slot, own in slots.items()
    }


def _sgd(update: Update, weights: Named, gradients: Named, slots: Slots, rate: Array) -> Moved:
    return {name: rate * each for name, each in gradients.items()}, {}


def _momentum(update: Update, weights: Named, gradients: Named, slots: Slots, rate: Array) -> Moved:
    velocity = _traced(update, gradients, slots["momentum"])
    return {name: rate * each for name, each in velocity.items()}, {"momentum": velocity}


def _traced(update: Update, gradients: Named, velocity: Named) -> Named:
    import optax  # a second of start-up that plain gradient descent does without

    found, _ = optax.trace(update.momentum).update(gradients, optax.TraceState(trace=velocity))
    return dict(found)


def _rmsprop(update: Update, weights: Named, gradients: Named, slots: Slots, rate: Array) -> Moved:
    import optax

    scaling = optax.scale_by_rms(update.rmsprop_decay, update.rmsprop_epsilon, eps_in_sqrt=True)
    shaped, after = scaling.update(gradients, optax.ScaleByRmsState(nu=slots["mean_square"]))
    velocity = _traced(update, {name: rate * each for name, each in shaped.items()}, slots["momentum"])
    return velocity, {"mean_square": dict(after.nu), "momentum": velocity}


def _lars(update: Update, weights: Named, gradients: Named, slots: Slots, rate: Array) -> Moved:
    """Optax has the norm of gradient and decay together below the line, not the sum of their norms."""
    own = [name for name in gradients if not names.holds(name, update.lars_skip)]
    factors = {name: _trust(update, weights[name], gradients[name]) for name in own}
    pulled = {name: gradients[name] + update.weight_decay * weights[name] for name in own}
    velocity = _traced(update, gradients | pulled, slots["momentum"])
    return {name: rate * factors.get(name, 1.0) * each for name, each in velocity.items()}, {"momentum": velocity}


def _trust(update: Update, weight: Array, gradient: Array) -> Array:
    own, slope = jnp.linalg.norm(weight.ravel()), jnp.linalg.norm(gradient.ravel())
    below = slope + update.weight_decay * own + update.lars_epsilon
    usable = (own > 0) & (slope > 0)
    return jnp.where(usable, update.lars_eeta * own / jnp.where(usable, below, 1.0), 1.0)


_RULES: Mapping[str, Callable[[Update, Named, Named, Slots, Array], Moved]] = {
    "sgd": _sgd,
    "momentum": _momentum,
    "rmsprop": _rmsprop,
    "lars": _lars,
}


def _pulled(gradients: Named, weights: Named, decay: float) -> Named:
    return {
        name: each + decay * weights[name] if decay and names.is_decayed(name) else each
        for name, each in gradients.items()
    }


def _clipped(gradients: Named, longest: float) -> Named:
    """All gradients, shortened by one factor if together they are too long."""
    norm = jnp.sqrt(sum(jnp.sum(jnp.square(each)) for each in gradients.values()))
    factor = longest / jnp.maximum(norm, longest)
    return {name: each * factor for name, each in gradients.items()}
