"""The name of a run of the TensorFlow programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layermark import __version__
from layermark.seeds.cnns.logs import ending
from layermark.spec import Spec

_TAGS = {"resnet": "RN", "resnext": "RNX", "squeezenet": "SqueezeNet", "efficientnet": "EfficientNet-"}


def run_folder(values: Mapping[str, Any], spec: Spec) -> Path | None:
    """Where a run writes; None if it writes nothing."""
    if values["no_logs"]:
        return None
    return Path(values["logs_path"] or Path(values["log_dir"]) / f"{run_name(values, spec)}_{ending()}")


def run_name(values: Mapping[str, Any], spec: Spec) -> str:
    """Model, batch, norm and precision, as the seeds' programs put them together."""
    replicas = f"x{spec.plan.replicas}r" if spec.plan.replicas > 1 else ""
    rounding = "_noSR" if values["no_stochastic_rounding"] and values["model"] != "efficientnet" else ""
    suffix = f"_{values['name_suffix']}" if values["name_suffix"] else ""
    tag = f"{_TAGS[values['model']]}{_size(spec.workload)}"
    return f"{tag}_bs{spec.batch_size}{replicas}_{_norm(spec)}_{spec.precision}{rounding}{suffix}_v{__version__}"


def _size(workload: str) -> str:
    """What distinguishes the members of a family: 50, B4, CIFAR."""
    if workload.startswith("efficientnet-"):
        return workload.removeprefix("efficientnet-").upper()
    return "".join(each for each in workload.split("-")[0] if each.isdigit())


def _norm(spec: Spec) -> str:
    kind = spec.params.get("norm_type", "batch")
    return {"batch": "BN", "none": "noBN"}.get(kind, f"GN{spec.params.get('norm_num_groups')}")
