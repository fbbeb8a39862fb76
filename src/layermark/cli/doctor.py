"""`layermark doctor`: the machine, the runtimes, the ceilings and the noise, before anybody trusts a number."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layermark.cli.parsing import Parser

SUMMARY = "show the machine, the runtimes installed and missing, the ceilings and the timing noise"


# A machine left alone stays within about two per cent; beyond this, small differences cannot be told.
NOISY = 0.05


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument("--quick", action="store_true", help="leave the measuring out: no ceilings, no noise")
    parser.add_argument(
        "--threads", metavar="N", help="thread budget of the measuring (default: every CPU of this process)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Print what is known, and what was measured now."""
    from layermark.environment import record

    facts = {"machine": record(), "runtimes": _runtimes(), "advice": []}
    if not args.quick:
        facts |= _measured(_threads(args.threads))
    facts["advice"] = list(_advice(facts))
    print(json.dumps(facts) if args.json else "\n".join(_lines(facts)))
    return 0


def _threads(text: str | None) -> int:
    from layermark.devices.cpu import thread_budget
    from layermark.options import options_of
    from layermark.spec import Spec

    option = next(each for each in options_of(Spec) if each.name == "threads")
    return thread_budget() if text is None else int(option.read(text))


def _measured(threads: int) -> dict[str, Any]:
    from layermark import session
    from layermark.errors import Unsupported, WorkerFailed

    try:
        return {"ceilings": session.measure_ceilings(threads), "noise": session.measure_noise(threads)}
    except (Unsupported, WorkerFailed) as error:
        return {"not_measured": str(error)}


def _runtimes() -> list[dict[str, Any]]:
    from layermark import registry
    from layermark.backends.base import backend

    offered = [found for found in map(backend, sorted(registry.modules("backends"))) if found.by_default]
    return [
        {
            "name": found.name,
            "installed": found.installed,
            "version": found.version if found.installed else "",
            "install": found.install_line,
        }
        for found in offered
    ]


def _advice(facts: Mapping[str, Any]) -> Iterator[str]:
    machine = facts["machine"]
    if machine["governor"] not in ("performance", "unknown"):
        yield f"the frequency governor is {machine['governor']}; performance gives steadier numbers"
    if machine["load"] > 0.5:
        yield f"the load average was {machine['load']}; something else is running"
    if facts.get("noise", {}).get("spread", 0) > NOISY:
        yield f"one matrix product varied by {facts['noise']['spread']:.1%}; expect wide intervals"
    if not any(runtime["installed"] for runtime in facts["runtimes"]):
        yield "no runtime is installed; install one with: " + facts["runtimes"][0]["install"]


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    yield "machine"
    yield from (f"  {name.removesuffix('_bytes'):14}{_shown(name, value)}" for name, value in facts["machine"].items())
    yield "runtimes"
    for each in facts["runtimes"]:
        yield f"  {each['name']:14}{each['version'] if each['installed'] else 'missing; ' + each['install']}"
    yield from _measured_lines(facts)
    yield from (f"advice: {text}" for text in facts["advice"])


def _measured_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    if "not_measured" in facts:
        yield f"ceilings and noise were not measured: {facts['not_measured']}"
    if "ceilings" in facts:
        ceilings, noise = facts["ceilings"], facts["noise"]
        yield f"ceilings with {ceilings['threads']} threads"
        yield f"  {'arithmetic':14}{ceilings['flops_per_s'] / 1e9:.1f} GFLOP/s"
        for size, rate in ceilings["bytes_per_s"].items():
            yield f"  {'bandwidth':14}{rate / 1e9:.1f} GB/s over {int(size) / 2**20:g} MiB"
        yield f"noise over {noise['readings']} readings of one matrix product"
        yield f"  {'spread':14}{noise['spread']:.1%}"
        yield f"  {'range':14}{noise['lowest']:.1%} to {noise['highest']:.1%} of the median"


def _shown(name: str, value: Any) -> str:
    if name == "memory_bytes":
        return f"{value / 2**30:.1f} GiB"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(key, each)}" for key, each in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "none" if value is None else str(value)
