"""The training commands of the documents as they are typed, and how the tests read one."""

import functools
import shlex
from collections.abc import Mapping
from pathlib import Path

from layermark.seeds.cnns.train_parsing import parse
from layermark.seeds.cnns.train_request import Instance

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "tensorflow_cnns" / "train.py"

MODELS = ("resnet", "resnext", "efficientnet", "squeezenet")
MADE_UP = "--synthetic-data --dataset imagenet"
SMALL = f"{MADE_UP} --image-size 32"
TINY = "--generated-data --dataset cifar-10 --model-size 8"
LOADED = "--data-dir {data} --dataset imagenet --image-size 32"

_RESNET = (
    "--model resnet --model-size 50 --dataset imagenet --data-dir $DATASETS_DIR/ --ckpts-per-epoch 0 --batch-size 16 "
    "{} --epochs 1 --no-validation --xla-recompute --optimiser momentum --momentum 0.9 --normalise-input --stable-norm "
    "--internal-exchange-optimisation-target balanced --enable-half-partials --standard-imagenet "
    "--pipeline-num-parallel 32 --pipeline-schedule Grouped --no-dataset-cache --shards=4 "
    "--pipeline-splits b1/2/relu b2/3/relu b3/3/relu --pipeline --batch-norm --available-memory-proportion 0.15 "
    "--disable-variable-offloading --precision 16.32 --eight-bit-io"
)
_RESNEXT = (
    "--model resnext --model-size 101 --dataset imagenet --data-dir $DATASETS_DIR {} --batch-size 6 --pipeline "
    "--gradient-accumulation-count {} --pipeline-splits b3/3/relu --epoch 2 --ckpts-per-epoch 0 --xla-recompute "
    "--normalise-input --internal-exchange-optimisation-target balanced --enable-half-partials --stable-norm "
    "--base-learning-rate -11 --pipeline-schedule Grouped --optimiser momentum --momentum 0.9 --lr-schedule cosine "
    "--label-smoothing 0.1 --no-validation --disable-variable-offloading {} --eight-bit-io"
)
_EFFICIENTNET = (
    "--model=efficientnet --model-size=4 --data-dir $DATASETS_DIR/ --precision=16.32 --group-dim=16 --expand-ratio=4 "
    "--dataset=imagenet --groups=4 --optimiser=RMSprop --lr-schedule=exponential --xla-recompute "
    "--enable-conv-dithering --available-memory-proportion=0.15 --pipeline-schedule Grouped "
    "--internal-exchange-optimisation-target balanced --weight-avg-exp 0.97 --enable-half-partials "
    "--cutmix-lambda 0.85 --mixup-alpha=0.2 --disable-variable-offloading --batch-size=5 --shards=4 "
    "--pipeline-split block2c block4c block6a --pipeline --gradient-accumulation-count=40 --no-validation --epochs {}"
)
COMMANDS = {
    "S10": _RESNET.format("--replicas 1 --gradient-accumulation-count 1024"),
    "S11": _RESNET.format("--gradient-accumulation-count 256"),
    "S12": _RESNEXT.format("--shards 2 --replicas 2", 64, ""),
    "S13": _RESNEXT.format("--shards 2", 16, "--standard-imagenet"),
    "S14": _EFFICIENTNET.format(2),
    "S15": _EFFICIENTNET.format(1),
    "S16": _EFFICIENTNET.format(2),
    "S17": _EFFICIENTNET.format(1),
}
_AS_HEADED = {
    "--group-dim=16 --expand-ratio=4": "--group-dim=1 --expand-ratio=6",
    "--batch-size=5": "--batch-size=3",
    "block2c block4c block6a": "block2b block4b block6c",
    "--gradient-accumulation-count=40": "--gradient-accumulation-count=256",
}
"""S14 and S15 are headed "Group Dim 1", but printed as S16 and S17: what makes them what their heading says."""
_ON_FOUR_INSTANCES = {"--gradient-accumulation-count=40": "--gradient-accumulation-count=64"}


def _changed(name: str, changes: Mapping[str, str]) -> str:
    return functools.reduce(lambda text, pair: text.replace(*pair), changes.items(), COMMANDS[name])


COMMANDS |= {
    "S14 corrected": _changed("S14", _AS_HEADED),
    "S15 corrected": _changed("S15", _AS_HEADED | _ON_FOUR_INSTANCES),
}
PLACES = {
    "S11": Instance(count=4, index=1, local_replicas=1, shards=4),
    "S13": Instance(count=8, index=7, local_replicas=1, shards=2),
    "S15": Instance(count=4, index=0, local_replicas=1, shards=4),
    "S15 corrected": Instance(count=4, index=2, local_replicas=1, shards=4),
    "S17": Instance(count=4, index=3, local_replicas=1, shards=4),
}


def read(text, **more):
    """What `train.py` would do, on the backend that needs no framework."""
    return parse([*shlex.split(text), "--backend", "null"], SCRIPT, **more)


def document(name, folder, **more):
    """What a command of the documents asks for, with the data in this folder."""
    place = PLACES.get(name)
    return read(COMMANDS[name].replace("$DATASETS_DIR", str(folder)), instance=place, **more)
