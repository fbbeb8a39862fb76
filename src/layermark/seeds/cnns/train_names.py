"""What a run of `train.py` is called: the title of its model, its name, its folder."""

from __future__ import annotations

from pathlib import Path

from layermark import __version__
from layermark.errors import UserError
from layermark.seeds.cnns.logs import ending
from layermark.seeds.cnns.train_lines import TRAINING
from layermark.seeds.cnns.train_request import TrainRequest
from layermark.seeds.cnns.validation import CHECKPOINTS

TITLES = {"resnet": "ResNet-", "resnext": "ResNeXt-", "efficientnet": "EfficientNet-", "squeezenet": "SqueezeNet"}
_TAGS = {"resnet": "RN", "resnext": "RNX", "efficientnet": "EfficientNet-", "squeezenet": "SN"}
_USUAL_SIZE = (224, 224)


def title(request: TrainRequest) -> str:
    """Return the name of the model, such as ResNet-50 or EfficientNet-B4."""
    return f"{TITLES[request.model]}{model_size(request.spec.workload)}"


def model_size(workload: str) -> str:
    """Return what distinguishes the members of a family.

    >>> [model_size(name) for name in ("resnet50", "resnext101-32x4d", "efficientnet-b4", "squeezenet")]
    ['50', '101', 'B4', '']
    """
    family, _, word = workload.partition("-")
    return word.upper() if family == "efficientnet" else "".join(each for each in family if each.isdigit())


def run_name(request: TrainRequest) -> str:
    """Return model, batch, norm, precision and picture size, as the original program puts them together."""
    tag = f"{_TAGS[request.model]}{model_size(request.spec.workload)}"
    rounding = "" if request.stochastic_rounding or request.model not in ("resnet", "resnext") else "_noSR"
    suffix = f"_{request.name_suffix}" if request.name_suffix else ""
    parts = (_batch(request), _norm(request), f"{request.precision}{rounding}")
    return f"{tag}_{'_'.join(parts)}{_size(request)}{suffix}_v{__version__}"


def _batch(request: TrainRequest) -> str:
    """EfficientNet puts accumulation before replicas, the others the other way round."""
    replicas = f"x{request.replicas}r" if request.replicas > 1 else ""
    letter = "p" if request.pipeline else "a"
    accumulated = f"x{request.accumulation}{letter}" if request.pipeline or request.accumulation > 1 else ""
    factors = (accumulated, replicas) if request.model == "efficientnet" else (replicas, accumulated)
    return f"bs{request.micro_batch}{''.join(factors)}"


def _norm(request: TrainRequest) -> str:
    return {"batch": "BN", "none": "noBN"}.get(request.norm, f"GN{request.norm_groups}")


def _size(request: TrainRequest) -> str:
    """Only pictures of ImageNet have a choice of sizes."""
    height, width = request.image_size
    return f"_{height}x{width}" if request.dataset == "imagenet" and request.image_size != _USUAL_SIZE else ""


def run_folder(request: TrainRequest) -> Path | None:
    """Return where this process writes: a folder of its own, the one that it goes on with, or None for nowhere."""
    if not request.logs or (request.instance.index > 0 and not request.log_all_instances):
        return None
    if request.restore_path:
        return Path(request.restore_path)
    if request.logs_path:
        return _unused(Path(request.logs_path))
    return Path(request.log_dir) / f"{run_name(request)}_{ending()}"


def _unused(folder: Path) -> Path:
    """A folder that another run has not written into: rows and checkpoints of two runs do not belong together."""
    if (folder / TRAINING).exists() or any((folder / CHECKPOINTS).glob("ckpt-*")):
        raise UserError(
            f"--logs-path {folder}: this folder holds another run; choose another one, or go on with that run: "
            f"--restore-path {folder}"
        )
    return folder
