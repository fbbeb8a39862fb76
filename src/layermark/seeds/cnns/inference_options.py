"""The options of the PyTorch inference program, of its first and of its later releases."""

from __future__ import annotations

from layermark.options import choice, number, positive_float, share, size
from layermark.seeds.cnns.batch_sizes import as_ladder
from layermark.seeds.cnns.script import EXTRAS, CnnScript, precision
from layermark.seeds.options import SeedOption, count, extra, flag, real, text, words
from layermark.seeds.tables import EMULATE_HALF
from layermark.spec import PRECISIONS

LEAST_IO_TILES = 32


def io_tiles(text: str) -> int:
    """0, or at least 32."""
    value = int(text) if text.isdigit() else -1
    if value != 0 and value < LEAST_IO_TILES:
        raise ValueError(f"expected 0, or a whole number of at least {LEAST_IO_TILES}")
    return value


BATCH = "pictures in one batch"
WORKERS = "processes that load pictures"
CHUNK = "pictures that a loader process is given at a time (default: a share of the batch)"
CACHE = "share of the encoded pictures that is kept in memory"
EIGHT_BIT = "send pictures as bytes, which the model normalises"
LOCATION = "who normalises pictures: host, ipu (the model itself), or nobody"

NORMALIZATION = words("normalization-location", "host", ("host", "ipu", "none"), LOCATION, "~")
REBATCH = count("dataloader-rebatch-size", None, CHUNK)
MEMORY_CACHE = real("webdataset-memory-cache-ratio", 0.0, CACHE, share)

OPTIONS: tuple[SeedOption, ...] = (
    text("config", "start from a named set of configs.yml", metavar="NAME"),
    as_ladder(count("batch-size", 1, BATCH)),
    text("model", "network to run", metavar="NAME", default="resnet18"),
    words(
        "data",
        "real",
        ("real", "synthetic", "generated"),
        "pictures of the folder images; random and resident; random and copied from the host for every batch",
    ),
    text("pipeline-splits", "begin a new stage at each named module", metavar="NAME", mark="~", many=True, default=()),
    count("replicas", 1, "copies of the program, each with its own share of the threads", mark="~"),
    count("device-iterations", 1, "batches per host call"),
    text(
        "precision",
        "compute type . stored-weight type; half and full are 16.16 and 32.32",
        precision,
        metavar="|".join((*PRECISIONS, "half", "full")),
        default="16.16",
    ),
    count("iterations", 100, "host calls"),
    flag("half-partial", "allow products of 16-bit numbers to be added up in 16 bits", mark="~"),
    words("norm-type", "batch", ("batch", "group", "none"), "norms; none leaves them out", aliases=("normlayer",)),
    real("norm-eps", 1e-5, "epsilon of the norms", positive_float),
    count("norm-num-groups", 32, "groups of group norms", aliases=("groupnorm-group-num",)),
    flag("enable-fast-groupnorm", "put channel c into group c mod groups", mark="~"),
    real("batchnorm-momentum", 0.1, "share of the new in running statistics", positive_float, "training"),
    NORMALIZATION,
    flag("eight-bit-io", EIGHT_BIT),
    text(
        "num-io-tiles",
        "above 0, three batches of real pictures are made ahead; the number itself means nothing here",
        io_tiles,
        metavar="N",
        mark="~",
        default=0,
    ),
    flag("random-weights", "seeded weights, even where weights/MODEL.safetensors (or .pth) is there"),
    words("exchange-memory-target", "cycles", ("cycles", "balanced", "memory"), "planning of exchanges", "sim"),
    count("efficientnet-expand-ratio", 6, "by how much EfficientNet's blocks are wider inside than outside"),
    count("efficientnet-group-dim", 1, "channels of each group in EfficientNet's k x k convolutions"),
    flag("input-image-padding", "give the pictures a fourth channel of zeros"),
    count("dataloader-worker", None, f"{WORKERS} (default: as many as CPUs, at most 32)", at_least=0),
    REBATCH,
    MEMORY_CACHE,
    flag("profile", "write a profile and stop after the first host call", mark="~"),
    text("model-cache-path", "folder in which PyTorch keeps compiled programs", metavar="FOLDER", mark="~"),
    text(
        "available-memory-proportion",
        "share of the memory that convolutions may use, one or one per stage",
        number,
        metavar="X",
        mark="sim",
        many=True,
        default=(),
    ),
    flag("full-precision-norm", "norms in fp32 where the rest computes in 16 bits; in 32.32 they are in any case"),
)

OWN_EXTRAS: tuple[SeedOption, ...] = (
    extra("data-dir", "folder of the data (default: images, data/images, ../data/images)", str, "FOLDER"),
    extra("image-size", "size of the pictures (default: the model's own)", size(), "N|HxW"),
    extra("weights", "a checkpoint of the model: .safetensors or .pth", str, "FILE"),
    extra("skip-bad", "pass over bad pictures and count them", choice("on", "off"), "on|off", "off"),
)

SCRIPT = CnnScript(
    name="pytorch_cnns/run_benchmark",
    about="Inference of CNN models: images per second, and the latency of a batch.",
    runtime="torch",
    options=OPTIONS,
    extras=(*EXTRAS, EMULATE_HALF, *OWN_EXTRAS),
)

HOST_BENCHMARK = CnnScript(
    name="pytorch_cnns/host_benchmark",
    about="The input pipeline alone: images per second, with no model to feed.",
    runtime="",
    options=(
        count("batch-size", 1024, BATCH),
        words("data", "imagenet", ("imagenet", "real", "synthetic", "generated", "cifar10"), "what is read"),
        text("imagenet-data-path", "folder of the data set", metavar="FOLDER"),
        flag("disable-async-loading", "load between batches, in the same process"),
        NORMALIZATION,
        count("dataloader-worker", None, f"{WORKERS} (default: 32, at most as many as CPUs)", at_least=0),
        flag("eight-bit-io", EIGHT_BIT),
        REBATCH,
        MEMORY_CACHE,
    ),
    extras=(
        *(each for each in EXTRAS if each.name == "budget"),
        extra("image-size", "size of the pictures", size(), "N|HxW", (224, 224)),
        *(each for each in OWN_EXTRAS if each.name == "skip-bad"),
    ),
)
