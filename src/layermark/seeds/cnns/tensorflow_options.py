"""The options of the TensorFlow CNN programs. Which there are depends on the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from layermark import pipelines
from layermark.errors import unknown
from layermark.options import choice, integer, number, percentage, positive_float, share
from layermark.seeds.cnns.batch_sizes import as_ladder
from layermark.seeds.cnns.script import CnnScript, precision
from layermark.seeds.options import SeedOption, count, flag, real, text, truth, words
from layermark.spec import PRECISIONS

DATASETS = ("imagenet", "cifar-10", "cifar-100")
NO_PROFILE = "NO_PROFILE"
PROFILES = ("DEVICE_PROFILE", "IPU_PROFILE", "TILE_PROFILE", NO_PROFILE)


def grouped(title: str, *options: SeedOption) -> tuple[SeedOption, ...]:
    """Options under a title in the help."""
    return tuple(dataclasses.replace(each, group=title) for each in options)


def training(*options: SeedOption) -> tuple[SeedOption, ...]:
    """Options as a program sees them that does not train."""
    return tuple(dataclasses.replace(each, mark="training") for each in options)


def lower(*known: str) -> object:
    """A reader of words in any case."""
    return lambda text: choice(*known)(text.lower())


MODEL = text("model", "family of the network", str.lower, metavar="NAME", default="resnet")
CONFIG = text("config", "start from a named set of configs.yml", metavar="NAME")
MAIN = grouped(
    "Main",
    MODEL,
    CONFIG,
    text("restore-path", "a checkpoint (.safetensors or .pth), or a folder of them", metavar="PATH"),
    count("repeat", 1, "validations to run"),
)

_NORMS = (
    flag("batch-norm", "batch norms"),
    flag("group-norm", "group norms (the default on ImageNet)"),
    *training(real("BN-decay", 0.97, "share of the old in running statistics", share)),
)
_RESIDUAL = (
    count("model-size", None, "depth (default: the smallest)"),
    *_NORMS,
    count("groups", None, "groups of group norms (default: 32, CIFAR 16)"),
)
_MODELS: Mapping[str, tuple[str, tuple[SeedOption, ...]]] = {
    "resnet": ("ResNet", _RESIDUAL),
    "resnext": (
        "ResNeXt",
        (
            *_RESIDUAL,
            count("convolution-groups", 32, "groups of the 3x3 convolutions"),
            count("group-dim", 4, "channels of each group in the first stage"),
            flag("widenet", "the wide variant of the CIFAR sizes"),
        ),
    ),
    "efficientnet": (
        "EfficientNet",
        (
            text("model-size", "B0 to B7, or CIFAR", str.upper, metavar="SIZE", default="B0"),
            *training(
                real("dropout-rate", None, "share that is dropped before the last layer", share),
                real("block-survival-prob", 0.8, "share of the last block's results that are kept", share),
            ),
            flag("no-se", "leave out squeeze-and-excite"),
            count("depth-divisor", 8, "widths are rounded to multiples of this"),
            count("top-width", 1280, "channels of the last 1x1 convolution before scaling; 0 removes it", at_least=0),
            flag("use-relu", "ReLU instead of swish"),
            count("expand-ratio", 6, "by how much blocks are wider inside than outside"),
            count("group-dim", 1, "channels of each group in the k x k convolutions"),
            *_NORMS,
            count("groups", 4, "groups of group norms, at most as many as channels"),
            real("norm-epsilon", 1e-3, "epsilon of the norms", positive_float),
            real("width-coefficient", None, "factor of all widths", positive_float),
            real("depth-coefficient", None, "factor of all depths", positive_float),
            flag("proxy-norm", "proxy norms: group norms with a proxy normalisation after the activation"),
            real("proxy-epsilon", 0.03, "epsilon of the proxy's deviation", positive_float),
            flag("no-proxy-recompute", "keep the proxy's activations; in inference they are constants", mark="sim"),
        ),
    ),
    "squeezenet": ("SqueezeNet", ()),
}

DATASET = grouped(
    "Dataset",
    text(
        "dataset",
        "which data set (default: what the folder holds)",
        lower(*DATASETS),  # type: ignore[arg-type]
        metavar="|".join(DATASETS),
        choices=DATASETS,
    ),
    text("data-dir", "folder of the data set, or above it (default: $DATA_DIR, $DATASETS_DIR)", metavar="FOLDER"),
    count("pipeline-num-parallel", None, "pictures decoded in parallel (default: 48, at most as many as CPUs)"),
    flag("generated-data", "random pictures, copied from the host for every batch"),
    flag("synthetic-data", "random pictures that stay on the device", mark="~"),
    flag("no-dataset-cache", "do not keep encoded pictures in memory"),
    flag("normalise-input", "mean and deviation of ImageNet; without it only the mean is subtracted"),
    count("image-size", None, "size of the pictures (default: the model's own)"),
    flag("hostside-norm", "normalise on the host instead of in the model; dropped with bytes", mark="~"),
    flag("standard-imagenet", "all processes work on every batch, instead of each on one of its own"),
    flag("eight-bit-io", "send pictures as bytes, which the model casts and normalises"),
    flag("fused-preprocessing", "cast and normalise in one operation, as is always done here", mark="sim"),
    *training(
        flag("train-with-valid-preprocessing", "centre crops in training"),
        real("mixup-alpha", 0.0, "parameter of mixup; 0 is off"),
        real("cutmix-lambda", 1.0, "share of a picture that cutmix keeps; 1 is off", share),
        flag("hostside-image-mixing", "mix on the host"),
        words("cutmix-version", "1", ("1", "2"), "2 keeps the box inside the picture"),
        text("dataset-percentage-to-use", "share of the training set", percentage, metavar="N", default=100),
    ),
)

SPREAD = grouped(
    "Training",
    count("batch-size", None, "pictures in one batch of a replica (default: by model and data set)"),
    count("micro-batch-size", None, "the later name of --batch-size", aside=True),
    count("total-batch-size", None, "pictures in one batch of all replicas together", aside=True),
    count("shards", 1, "processors that one copy of the model is spread over; one device holds all stages", mark="~"),
    count("replicas", 1, "copies of the program, each with its own share of the threads", mark="~"),
    flag("pipeline", "pipeline over the shards; with one device there is nothing to pipeline", mark="~"),
    text("pipeline-splits", "begin a new stage at each name", metavar="NAME", mark="~", many=True, default=()),
    words("pipeline-schedule", "Interleaved", tuple(pipelines.SCHEDULES), "order of the stages", "sim"),
)
LEARNING = grouped(
    "Training",
    count("gradient-accumulation-count", 1, "batches per update"),
    real("base-learning-rate", None, "N of the peak rate 2**N x batch", aliases=("base-learning-rate-exponent",)),
    real("abs-learning-rate", None, "the peak rate itself", positive_float),
    real("epochs", None, "length of training", positive_float),
    count("iterations", None, "length of training in updates"),
    real("weight-decay", None, "factor of the weights in the gradient"),
    real("loss-scaling", 128.0, "factor of the loss", positive_float),
    real("label-smoothing", None, "share of the target that other classes get", share),
    count("ckpts-per-epoch", 1, "checkpoints in an epoch", at_least=0),
    text("ckpt-all-instances", "every instance saves checkpoints", truth, default=False),
    flag("no-validation", "no validation after training"),
    count("max-cross-replica-buffer-size", 10485760, "bytes that may wait before gradients are added up", at_least=0),
    words("optimiser", "SGD", ("SGD", "momentum", "RMSprop", "LARS"), "how weights are updated"),
    real("momentum", 0.9, "momentum of the optimiser"),
    real("rmsprop-decay", None, "decay of RMSprop"),
    real("rmsprop-base-decay-exp", None, "N of the decay 1 - 2**N x batch"),
    real("rmsprop-epsilon", 0.001, "epsilon of RMSprop", positive_float),
    text("variable-filter", "train only variables with one of these in their name", many=True, default=()),
    text("init-path", "start from this checkpoint", metavar="PATH"),
    flag("distributed", "several hosts through TF_CONFIG"),
    flag("stable-norm", "a safer way to compute variances"),
    text("weight-avg-N", "mean over the last N epochs", integer(1), metavar="N", many=True, default=()),
    text("weight-avg-exp", "exponential mean of checkpoints", number, metavar="X", many=True, default=()),
    real("lars-epsilon", 0.0, "epsilon of LARS"),
    text("lars-skip-list", "variables that LARS leaves alone", many=True, default=("beta", "gamma", "bias")),
    real("lars-weight-decay", None, "weight decay of LARS"),
    real("lars-eeta", 0.001, "trust coefficient of LARS"),
)
IPU = grouped(
    "IPU",
    text(
        "precision",
        "compute type . stored-weight type",
        precision,
        metavar="|".join(PRECISIONS),
        default="16.16",
    ),
    flag("enable-half-partials", "allow products of 16-bit numbers to be added up in 16 bits", mark="~"),
    flag("no-stochastic-rounding", "round to nearest, as is always done here", mark="sim"),
    count("batches-per-step", 1000, "most batches per host call"),
    text(
        "select-ipu",
        "index of the GPU, where there is one; else 0, like AUTO, is the CPU",
        metavar="ID",
        mark="~",
        default="AUTO",
    ),
    text("sharding-exclude-filter", "where sharding may not cut", mark="sim", many=True, default=("0/p",)),
    text("sharding-include-filter", "where sharding may cut", mark="sim", many=True, default=("",)),
    flag("fp-exceptions", "stop at numbers that are not finite, which every verification does", mark="~"),
    count("seed", None, "seed of weights and data; pictures are then loaded by one process", at_least=0),
    text(
        "gc-profile",
        f"write a profile; alone it means IPU_PROFILE, {NO_PROFILE} is none",
        choice(*PROFILES),
        metavar="|".join(PROFILES),
        choices=PROFILES,
        mark="~",
        bare="IPU_PROFILE",
    ),
    flag("dataset-benchmark", "time the input pipeline alone: 512 batches an epoch, --epochs epochs"),
    text(
        "available-memory-proportion",
        "share of the memory that convolutions may use: one value, or two per shard",
        number,
        metavar="X",
        mark="sim",
        many=True,
        default=(),
    ),
    flag("enable-conv-dithering", "vary where convolutions start", mark="sim"),
    words("internal-exchange-optimisation-target", None, ("balanced", "cycles", "memory"), "planning", "sim"),
    flag("compile-only", "build the program and stop", mark="~"),
    *training(
        flag("xla-recompute", "compute activations again in the backward pass", aliases=("enable-recomputation",)),
        flag("disable-variable-offloading", "keep the optimiser's state on the device"),
    ),
)
LOGGING = grouped(
    "Logging",
    text("log-dir", "folder above the folder of the run", metavar="FOLDER", default="logs"),
    text("name-suffix", "added to the name of the run"),
    flag("no-logs", "write no files"),
    text("logs-path", "the folder of the run itself", metavar="FOLDER", aside=True),
    *training(
        count("logs-per-epoch", 16, "lines in an epoch", at_least=0),
        count("log-freq", 500, "updates per line"),
        text("log-all-instances", "every instance writes its own folder", truth, default=False),
        flag("wandb", "also log to a service that this program never calls", aside=True),
        text("wandb-project", "project of that service", aside=True),
        flag("mlperf-logging", "lines in MLPerf's form", aside=True),
    ),
)
LATER = grouped(
    "Later releases",
    flag("latency", "show the mean latency of a batch in every line", aside=True),
    count("prefetch-depth", None, "batches of pictures made ahead", aside=True),
    count("num-io-tiles", 0, "tiles for transfers", at_least=0, mark="sim", aside=True),
    flag("inference", "validate without labels", mark="sim", aside=True),
    *training(
        real("epochs-per-ckpt", None, "epochs from one checkpoint to the next", aside=True),
        real("ckpt-epochs-offset", None, "epochs before the first checkpoint", aside=True),
        count("syncs-per-epoch", None, "synchronisations in an epoch", at_least=0, aside=True),
        real("epochs-per-sync", None, "epochs from one synchronisation to the next", aside=True),
        real("BN-span", None, "replicas whose batch norms share their statistics; 1 is carried out", aside=True),
        flag("offload-fp32-weight-copy", "keep the fp32 weights on the host", aside=True),
    ),
    flag("gather-conv-output", "gather what convolutions give before a norm", mark="sim", aside=True),
    count("min-remote-tensor-size", None, "smallest tensor kept remotely", mark="sim", aside=True),
    flag("on-demand", "attach to the device late", mark="sim", aside=True),
    flag("saturate-on-overflow", "largest numbers instead of infinities", mark="sim", aside=True),
    text("scheduling-algorithm", "order of operators", mark="sim", aside=True),
    flag("identical-replica-seeding", "the same seed in all replicas", mark="sim", aside=True),
    count("max-reduce-many-buffer-size", None, "bytes of a reduction", at_least=0, mark="sim", aside=True),
    flag("rts", "shard the optimiser's state", mark="training", aside=True),
)
TRAIN_ONLY_KEYS = frozenset(
    {"lr_schedule", "warmup_epochs", "learning_rate_decay", "learning_rate_schedule", "lr_decay_rate", "lr_drops"}
    | {"poly_lr_decay_power", "poly_lr_end_ratio", "abs_end_learning_rate"}
)
"""Options of the training program that a named set may hold, and that validation does not have."""


def model_options(model: str) -> tuple[SeedOption, ...]:
    """The options of a family of models, under its name."""
    if model not in _MODELS:
        raise unknown("model", model, _MODELS)
    title, own = _MODELS[model]
    return grouped(title, *own)


def validation_script(model: str) -> CnnScript:
    """The validation program as it is for a family of models."""
    own = model_options(model)
    shared = (*DATASET, *map(as_ladder, SPREAD), *training(*LEARNING), *IPU, *LOGGING, *LATER)
    return CnnScript(
        name="tensorflow_cnns/validation",
        about="Validation of CNN models: top-1 accuracy and images per second.",
        runtime="tensorflow",
        options=(*MAIN, *own, *shared),
        short_help=False,
    )
