"""Every implementation of the chain against its law, and the life of its program."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from layermark.errors import Unsupported
from layermark.spec import Spec
from layermark.worker.call_program import CallProgram
from layermark.workloads.base import task

NEEDS = {
    "torch": ("torch",),
    "jax": ("jax", "blackjax"),
    "tensorflow": ("tensorflow", "tensorflow_probability", "tf_keras", "tree", "decorator", "cloudpickle"),
}
VARIANTS = [
    ("torch", "library", "eager"),
    ("torch", "library", "compile"),
    ("jax", "library", "jit"),
    ("jax", "tuned", "jit"),
    ("tensorflow", "library", "function"),
    ("tensorflow", "library", "xla"),
    ("tensorflow", "tuned", "function"),
    ("tensorflow", "tuned", "xla"),
]
EVERY = pytest.mark.parametrize("variant", VARIANTS, ids="-".join)
Chain = tuple[tuple[str, str, str], int, CallProgram, Any]


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """What Inductor compiles at once need not be as large as in a measurement."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torch"):
            patch.setattr("layermark.workloads.programs.hmc.torch.COMPILED_MOVES", 20)
        yield


def _named(each: tuple[tuple[str, str, str], int]) -> str:
    return f"{'-'.join(each[0])}-{each[1]}"


def spec_of(variant: tuple[str, str, str], seed: int = 42, **params: Any) -> Spec:
    backend, formulation, execution = variant
    facts = {"formulation": formulation, "execution": execution, "batch_size": 1, "threads": 1, "seed": seed}
    return Spec(workload="hmc", backend=backend, params={"hmc_steps": 300, **params}, **facts)


def prepared(variant: tuple[str, str, str], seed: int = 42, **params: Any) -> tuple[CallProgram, Any]:
    """The program and its task, where everything is installed."""
    for name in NEEDS[variant[0]]:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    spec = spec_of(variant, seed, **params)
    made = task(spec)
    return CallProgram(made.implementation(spec)), made


@pytest.fixture(scope="module", params=[(variant, chains) for variant in VARIANTS for chains in (1, 6)], ids=_named)
def chain(request: pytest.FixtureRequest) -> Chain:
    """One implementation with one or several chains, built once for all that is asked of it."""
    variant, chains = request.param
    return variant, chains, *prepared(variant, chains=chains)


def test_follows_its_law(chain: Chain) -> None:
    _, _, program, made = chain
    found = made.verify(program)
    assert found.ok, found.reason
    assert found.against.startswith("normal law")


@pytest.mark.parametrize("leapfrog_steps", [4, 20])
@EVERY
def test_follows_its_law_with_other_trajectories(variant: tuple[str, str, str], leapfrog_steps: int) -> None:
    """With 4 moves the trajectory returns to its start, with 20 it turns round: only rounding is left."""
    program, made = prepared(variant, leapfrog_steps=leapfrog_steps, chains=8)
    found = made.verify(program)
    assert found.ok, found.reason


def test_every_call_draws_its_own_numbers(chain: Chain) -> None:
    _, chains, program, _ = chain
    program.load({})
    calls = []
    for _ in range(3):
        program.run(1)
        calls.append(program.outputs()["states"])
    assert calls[0].shape == ((300,) if chains == 1 else (300, chains)) and calls[0].dtype == np.float32
    assert not np.array_equal(calls[0], calls[1]) and not np.array_equal(calls[1], calls[2])
    program.load({})
    program.run(3)
    assert np.array_equal(program.outputs()["states"], calls[2])


@EVERY
def test_the_seed_chooses_the_stream(variant: tuple[str, str, str]) -> None:
    states = []
    for seed in (1, 1, 2):
        program, _ = prepared(variant, seed=seed)
        program.run(1)
        states.append(program.outputs()["states"])
    assert np.array_equal(states[0], states[1]) and not np.array_equal(states[0], states[2])


def test_settings_name_library_and_generator(chain: Chain) -> None:
    (backend, formulation, execution), _, program, _ = chain
    settings = program.settings
    assert settings["execution"] == execution and settings["formulation"] == formulation
    assert settings["generator"] and settings["compute_type"] == settings["output_type"] == "float32"
    named = {"jax": "blackjax", "tensorflow": "tensorflow-probability"}.get(backend)
    assert settings["library"].startswith(named if named and formulation == "library" else "none")


@pytest.mark.parametrize("variant", [("jax", "library", "jit"), ("jax", "tuned", "jit")], ids="-".join)
def test_the_fast_generator_follows_the_law_too(variant: tuple[str, str, str]) -> None:
    program, made = prepared(variant, generator="fast")
    usual, _ = prepared(variant)
    assert program.settings["generator"] != usual.settings["generator"]
    assert made.verify(program).ok


@pytest.mark.parametrize(
    ("variant", "params", "reason"),
    [
        (("torch", "tuned", "eager"), {}, "no tuned formulation"),
        (("torch", "library", "xla"), {}, "it knows eager, compile, auto"),
        (("torch", "library", "eager"), {"generator": "fast"}, "one generator"),
        (("jax", "library", "eager"), {}, "it knows jit, auto"),
        (("tensorflow", "library", "xla"), {"generator": "fast"}, "--generator default"),
    ],
)
def test_refusals(variant: tuple[str, str, str], params: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        prepared(variant, **params)


@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_runtimes_that_always_flush_say_so(backend: str) -> None:
    pytest.importorskip(backend)
    spec = spec_of((backend, "tuned", "auto")).replace(subnormals="keep")
    with pytest.raises(Unsupported, match="always flushes"):
        task(spec).implementation(spec)
