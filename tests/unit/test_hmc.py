"""The chain's law: honest chains pass, and every kind of wrong one is found out."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from layermark.axes import expand
from layermark.errors import Unsupported, UserError
from layermark.laws import random_generator
from layermark.spec import Spec
from layermark.worker.call_program import CallProgram
from layermark.workloads.base import task
from layermark.workloads.programs.base import Implementation, chosen
from layermark.workloads.programs.hmc import HmcParams, law, outputs, reference

QUICK = HmcParams(hmc_steps=1250, chains=8)


def spec_of(backend: str = "null", **changes: Any) -> Spec:
    return Spec(**{"workload": "hmc", "backend": backend, "batch_size": 1, "threads": 2} | changes)


def judged(params: HmcParams, seed: int, transition: Any = reference.transition) -> Any:
    """The verdict on the chains of two calls that take their transitions as told, rounded as float32 is."""
    states = [chained(params, seed, number, transition) for number in range(2)]
    return law.judge(np.concatenate(states, axis=1).astype("float32").astype("float64"), params)


def chained(params: HmcParams, seed: int, number: int, transition: Any) -> Any:
    rng = random_generator(seed, "test", number)
    shape = (params.hmc_steps, params.chains)
    momenta, log_uniforms = rng.standard_normal(shape), np.log1p(-rng.random(shape))
    x, states = np.ones(params.chains), []
    for momentum, log_uniform in zip(momenta, log_uniforms, strict=True):
        x = transition(x, momentum, log_uniform, params)
        states.append(x)
    return np.array(states)


@pytest.mark.parametrize("seed", range(20))
def test_honest_chains_pass(seed: int) -> None:
    found = judged(QUICK, seed)
    assert found.ok, found.reason
    assert found.against == law.AGAINST and found.tolerance == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"leapfrog_steps": 1},
        {"step_size": 0.1},
        {"step_size": 1.3, "leapfrog_steps": 3},
        {"step_size": 0.01},
        {"leapfrog_steps": 10},
        {"leapfrog_steps": 4},
        {"hmc_steps": 30, "chains": 300},
    ],
    ids=str,
)
def test_honest_chains_pass_at_every_setting(changes: dict[str, Any]) -> None:
    params = dataclasses.replace(QUICK, **changes)
    for seed in range(3):
        found = judged(params, seed)
        assert found.ok, found.reason


@pytest.mark.parametrize("changes", [{"leapfrog_steps": 10}, {"step_size": 0.01}, {"hmc_steps": 30}], ids=str)
def test_chains_that_cannot_reach_their_law_are_judged_by_their_transitions(changes: dict[str, Any]) -> None:
    assert judged(dataclasses.replace(QUICK, **changes), 0).against == law.AGAINST_TRANSITIONS


def always_accepts(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
    return reference.leapfrog(x, momentum, params)[0]


def never_accepts(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
    return x


def forgets_the_momentum(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
    """The energy of the momenta takes no part in the test."""
    end, _ = reference.leapfrog(x, momentum, params)
    return np.where(log_uniform < reference.log_density(end) - reference.log_density(x), end, x)


def accepts_too_rarely(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
    return reference.transition(x, momentum, log_uniform + 0.1, params)


def compares_without_the_logarithm(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
    return reference.transition(x, momentum, np.exp(log_uniform), params)


def draws_uniform_momenta(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
    return reference.transition(x, np.clip(momentum, -1.5, 1.5), log_uniform, params)


def never_draws_a_momentum(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
    return reference.transition(x, np.ones_like(momentum), log_uniform, params)


def with_gradient(scale: float) -> Any:
    def transition(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
        y, q, step = x, momentum, params.step_size
        for _ in range(params.leapfrog_steps):
            q = q + scale * step / 2 * reference.gradient(y)
            y = y + step * q
            q = q + scale * step / 2 * reference.gradient(y)
        return np.where(log_uniform < reference.log_acceptance(x, momentum, y, q), y, x)

    return transition


def with_params(**changes: Any) -> Any:
    def transition(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
        return reference.transition(x, momentum, log_uniform, dataclasses.replace(params, **changes))

    return transition


WRONG = {
    "no Metropolis test": always_accepts,
    "stands still": never_accepts,
    "momenta left out of the test": forgets_the_momentum,
    "accepts too rarely": accepts_too_rarely,
    "no logarithm": compares_without_the_logarithm,
    "gradient with the wrong sign": with_gradient(-1),
    "half the gradient": with_gradient(0.5),
    "another law of the momenta": draws_uniform_momenta,
    "momentum never drawn": never_draws_a_momentum,
    "a move too few": with_params(leapfrog_steps=4),
    "a move too many": with_params(leapfrog_steps=6),
    "another step size": with_params(step_size=0.95),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("seed", range(3))
def test_wrong_chains_fail(name: str, seed: int) -> None:
    found = judged(QUICK, seed, WRONG[name])
    assert not found.ok and found.max_error > law.TOLERANCE
    assert found.reason.startswith("wrong chain")


def test_a_momentum_that_is_not_refreshed_fails() -> None:
    """The trajectory goes on where the last one ended, turned round after a refusal."""
    kept = np.linspace(-2, 2, QUICK.chains)

    def transition(x: Any, momentum: Any, log_uniform: Any, params: HmcParams) -> Any:
        nonlocal kept
        end, end_momentum = reference.leapfrog(x, kept, params)
        accepted = log_uniform < reference.log_acceptance(x, kept, end, end_momentum)
        kept = np.where(accepted, end_momentum, -kept)
        return np.where(accepted, end, x)

    assert not judged(QUICK, 0, transition).ok


@pytest.mark.parametrize("broken", [np.nan, np.inf, 1e30])
def test_states_out_of_this_world_fail(broken: float) -> None:
    states = chained(QUICK, 0, 0, reference.transition)
    states[7, 3] = broken
    assert law.judge(states, QUICK).max_error == 1e308


def test_chains_that_repeat_each_other_fail() -> None:
    states = chained(QUICK, 0, 0, reference.transition)
    assert "repeats" in law.judge(np.concatenate([states, states], axis=1), QUICK).worst


def test_resonant_chains_are_still_told_from_wrong_ones() -> None:
    params = dataclasses.replace(QUICK, leapfrog_steps=10)
    for wrong in (never_accepts, with_gradient(0.5), with_params(leapfrog_steps=9), accepts_too_rarely):
        assert not judged(params, 0, wrong).ok


def test_the_acceptance_rate_is_that_of_the_reference() -> None:
    states = chained(dataclasses.replace(QUICK, chains=400), 0, 0, reference.transition)
    seen = np.mean(np.diff(states[100:], axis=0) != 0)
    assert law.expected_acceptance(QUICK) == pytest.approx(seen, abs=0.003)


def test_correlation_time_of_known_series() -> None:
    """A series whose neighbours are correlated by r has (1 + r) / (1 - r)."""
    rng = np.random.default_rng(0)
    noise, x, series = rng.standard_normal((400, 300)), np.zeros(300), []
    for each in noise:
        x = 0.5 * x + each
        series.append(x)
    assert law.correlation_time(noise) == pytest.approx(1, abs=0.1)
    assert law.correlation_time(np.array(series)) == pytest.approx(3, rel=0.1)


def test_one_chain_is_a_scalar_and_several_are_not() -> None:
    assert reference.chain(HmcParams(hmc_steps=5), 0, 0).shape == (5,)
    assert reference.chain(HmcParams(hmc_steps=5, chains=3), 0, 0).shape == (5, 3)


def test_the_work_is_counted() -> None:
    made = task(spec_of(params={"hmc_steps": 7, "chains": 3, "leapfrog_steps": 2}))
    assert made.items == 21
    assert made.flops("infer") == 21 * (19 + 6 * 2)
    assert made.compulsory_bytes("infer") == 84
    assert made.weights() == {} and made.memory_bytes("infer", 4) > 84


class Counted(Implementation):
    """The reference as an implementation that also remembers what it was asked for."""

    def __init__(self, params: HmcParams, repeats: bool = False) -> None:
        self.params, self.repeats, self.numbers = params, repeats, []

    @property
    def settings(self) -> dict[str, str]:
        return {"execution": "reference"}

    def call(self, number: int) -> Any:
        self.numbers.append(number)
        return reference.chain(self.params, 0, 0 if self.repeats else number)

    def outputs(self, result: Any) -> Any:
        return outputs(result)


def test_verification_runs_the_program_and_leaves_it_as_new() -> None:
    made = task(spec_of(params={"hmc_steps": 2500, "chains": 4}))
    implementation = Counted(made.params)
    program = CallProgram(implementation)
    program.run(3)
    assert made.verify(program).ok
    assert implementation.numbers == [0, 1, 2, 0, 1]
    program.run(1)
    assert implementation.numbers[-1] == 0


def test_a_program_that_repeats_its_first_call_is_found_out() -> None:
    params = HmcParams(hmc_steps=10000)
    assert "repeats" in law.verify(CallProgram(Counted(params, repeats=True)), params).worst


def test_enough_calls_are_made() -> None:
    needed = {n: law.calls_needed(HmcParams(hmc_steps=n)) for n in (1, 500, 10_000, 10**6)}
    assert needed == {1: 200, 500: 40, 10_000: 2, 10**6: 2}
    assert law.calls_needed(HmcParams(hmc_steps=500, chains=10)) == 4


def test_calls_give_states_and_acceptance() -> None:
    program = CallProgram(Counted(HmcParams(hmc_steps=50)))
    with pytest.raises(RuntimeError, match="no call"):
        program.outputs()
    timeline = program.run(2)
    assert len(timeline.done) == 2
    found = program.outputs()
    assert found["states"].shape == (50,) and found["states"].dtype == np.float32
    moved = np.diff(np.concatenate([[1.0], found["states"]])) != 0
    assert float(found["acceptance"]) == pytest.approx(moved.mean())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "train"}, "no --mode train"),
        ({"mode": "eval"}, "no --mode eval"),
        ({"precision": "16.16"}, "no --precision 16.16"),
        ({"batch_size": 4}, "no --batch-size 4"),
        ({"data": "generated"}, "no --data generated"),
        ({}, "needs a loop with random numbers inside"),
    ],
)
def test_what_a_chain_cannot_do_is_said(changes: dict[str, Any], reason: str) -> None:
    spec = spec_of(**changes)
    with pytest.raises(Unsupported, match=reason):
        task(spec).implementation(spec)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_runtimes_of_plain_graphs_are_skipped_with_a_reason(backend: str) -> None:
    with pytest.raises(Unsupported, match=f"no implementation on {backend}"):
        task(spec_of(backend)).implementation(spec_of(backend))


def test_an_unstable_step_is_refused_before_anything_starts() -> None:
    with pytest.raises(UserError, match=r"hmc: --step-size 1.5.*1.4142"):
        expand(["hmc"], {"step_size": "1.5", "backend": "null"})


def test_auto_takes_the_better_execution_and_says_so() -> None:
    import time

    executions = {"slow": lambda: lambda number: time.sleep(0.02), "quick": lambda: lambda number: number}
    call, told = chosen(spec_of(), executions)
    assert call(3) == 3 and told["execution"] == "quick"
    assert "slow" in told["execution_trial"] and "quick" in told["execution_trial"]


def test_auto_goes_on_without_a_way_that_fails() -> None:
    def fails() -> Any:
        raise RuntimeError("no compiler")

    _, told = chosen(spec_of(), {"plain": lambda: lambda number: number, "compile": fails})
    assert told["execution"] == "plain" and "compile failed: RuntimeError" in told["execution_trial"]
    with pytest.raises(RuntimeError, match="no compiler"):
        chosen(spec_of(), {"one": fails, "other": fails})
    with pytest.raises(Unsupported, match="has no execution xla; it knows plain, auto"):
        chosen(spec_of(execution="xla"), {"plain": lambda: lambda number: number})


def test_describe_counts_the_work(layermark: Any) -> None:
    found = json.loads(layermark("describe", "hmc", "--json", "--hmc-steps", 100).stdout)
    assert found["flops"] == {"infer": 4900} and found["bytes"] == {"infer": 400}
    assert found["items"] == 100 and found["item"] == "transition" and found["nodes"] == []
    assert "FLOPs" in layermark("describe", "hmc").stdout
