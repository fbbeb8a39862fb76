"""`layermark describe`: what a workload computes, exactly, without running it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from layermark.cli.parsing import Parser
from layermark.errors import shortened

if TYPE_CHECKING:
    from layermark.graph import Graph, Node
    from layermark.spec import Spec

SUMMARY = "show nodes, shapes, parameters, multiply-adds, FLOPs, bytes and names to split at"

# Only these fields of a spec change the network or the size of its numbers.
FIELDS = ("mode", "batch_size", "precision", "loss", "pipeline_splits")


def configure(parser: Parser) -> None:
    """Declare the options."""
    from layermark.cli.request import add_params
    from layermark.options import options_of
    from layermark.spec import Spec

    parser.usage = "layermark describe WORKLOAD [options]"
    parser.add_argument("workload", metavar="WORKLOAD", help="what to describe (layermark list workloads)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_group("what to describe", [each for each in options_of(Spec) if each.name in FIELDS])
    add_params(parser)


def execute(args: Namespace, argv: Sequence[str]) -> int:
    """Print the description."""
    from layermark.axes import expand
    from layermark.cli.request import setting_texts

    # The network is the same on every runtime, so any backend serves; this one is always there.
    spec = expand([args.workload], setting_texts(args) | {"backend": "null"}).only()
    facts = describe(spec)
    print(json.dumps(facts) if args.json else _text(facts))
    return 0


def describe(spec: Spec) -> dict[str, Any]:
    """Everything that is known about the network of a spec; `macs` is for a batch of one."""
    from layermark.workloads.base import task, workload

    whole = task(spec)
    tasks = {mode: task(_in_mode(spec, mode)) for mode in workload(spec.workload).modes}
    return {
        "workload": spec.workload,
        "params": spec.to_json()["params"],
        "mode": spec.mode,
        "batch_size": spec.batch_size,
        "precision": spec.precision,
        "item": workload(spec.workload).item,
        "items": whole.items,
        "parameters": whole.graph.parameter_count,
        "parameters_and_statistics": sum(each.count for each in whole.graph.parameters.values()),
        "macs": task(spec, batch_size=1).graph.macs,
        "flops": {mode: each.flops(mode) for mode, each in tasks.items()},
        "bytes": {mode: each.compulsory_bytes(mode, *_item_bytes(spec.precision)) for mode, each in tasks.items()},
        "nodes": [_node(whole.graph, node) for node in whole.graph],
        "splits": list(whole.graph.splits),
        "stages": [_stage(stage, whole.graph) for stage in whole.graph.cut(spec.splits)] if spec.splits else [],
    }


def _in_mode(spec: Spec, mode: str) -> Spec:
    from layermark.training.update import Update

    return spec.replace(mode=mode, update=spec.update if mode == "train" else Update())


def _stage(stage: Graph, whole: Graph) -> dict[str, Any]:
    work = [node.name for node in stage if node.name not in stage.inputs]
    return {
        "first": work[0],
        "last": work[-1],
        "parameters": stage.parameter_count,
        "macs": stage.macs,
        "share": stage.macs / max(1, whole.macs),
        "live": [name for name in stage.outputs if name not in whole.outputs],
    }


def _item_bytes(precision: str) -> list[int]:
    """Bytes of a computed and of a stored element: `16.32` is [2, 4]."""
    from layermark.spec import types_of

    return [{"64": 8, "32": 4, "int8": 1}.get(part, 2) for part in types_of(precision)]


def _node(graph: Graph, node: Node) -> dict[str, Any]:
    shapes = graph.input_shapes(node)
    return {
        "name": node.name,
        "op": type(node.op).__name__.lower(),
        "inputs": list(node.inputs),
        "shape": list(graph.shapes[node.name]),
        "parameters": sum(each.count for each in node.op.parameters(*shapes).values() if each.trainable),
        "macs": node.op.macs(*shapes),
        "flops": node.op.flops(*shapes),
    }


def _text(facts: dict[str, Any]) -> str:
    if not facts["nodes"]:
        return "\n".join([*_summary(facts), "no graph: a program with an implementation of its own for every runtime"])
    lines = [*_summary(facts), "", *_table(facts["nodes"]), "", "split at: " + _names(facts["splits"])]
    return "\n".join([*lines, *_stages(facts["stages"])])


def _stages(stages: Sequence[dict[str, Any]]) -> list[str]:
    return [
        f"stage {number}: {each['first']} to {each['last']}, {each['parameters']:,} parameters, "
        f"{each['share']:.0%} of the multiply-adds" + (f", hands on {', '.join(each['live'])}" if each["live"] else "")
        for number, each in enumerate(stages, 1)
    ]


def _summary(facts: dict[str, Any]) -> list[str]:
    from layermark.axes import as_text

    params = " ".join(f"{name}={as_text(value)}" for name, value in facts["params"].items())
    return [
        f"{facts['workload']}  {facts['mode']}  batch {facts['batch_size']}  {params}",
        f"parameters     {facts['parameters']:,}",
        f"multiply-adds  {facts['macs']:,} for a batch of one",
        f"FLOPs          {_by_mode(facts['flops'])} per batch",
        f"bytes          {_by_mode(facts['bytes'])} compulsory per batch at {facts['precision']}",
        f"items          {facts['items']:,} per batch; an item is one {facts['item']}",
    ]


def _table(nodes: Sequence[dict[str, Any]]) -> list[str]:
    rows = [("node", "op", "shape", "parameters", "multiply-adds")]
    rows += [
        (each["name"], each["op"], "x".join(map(str, each["shape"])), f"{each['parameters']:,}", f"{each['macs']:,}")
        for each in nodes
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return [_row(row, widths) for row in rows]


def _row(row: Sequence[str], widths: Sequence[int]) -> str:
    words = [text.ljust(width) for text, width in zip(row[:3], widths[:3], strict=True)]
    numbers = [text.rjust(width) for text, width in zip(row[3:], widths[3:], strict=True)]
    return "  ".join(words + numbers)


def _by_mode(values: dict[str, int]) -> str:
    return ", ".join(f"{mode} {value:,}" for mode, value in values.items())


def _names(splits: Sequence[str]) -> str:
    return shortened(splits, 60) or "nowhere (one node)"
