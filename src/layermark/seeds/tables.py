"""The option tables of the seed scripts."""

from __future__ import annotations

from layermark.options import choice, integer, seconds
from layermark.seeds.options import SeedOption, count, extra, flag, planner, truth, words
from layermark.spec import MODES, PRECISIONS

GENERATED = "copy every batch from the host, instead of keeping the inputs on the device"
REPORT = "profile a single batch: a summary by operator and a trace for Perfetto or chrome://tracing"
STEPS = "timed host calls"
BATCHES = "batches per host call"

POPART: tuple[SeedOption, ...] = (
    words("mode", "infer", MODES, "forward only; forward and loss; forward, backward and update"),
    flag("use-generated-data", GENERATED, mark="~"),
    count("batches-per-step", 1000, BATCHES),
    count("steps", 5, STEPS),
    planner("convolution-options", "convolutions"),
    planner("lstm-options", "LSTM layers"),
    count("shards", 1, "processors to spread the graph over; one layer on one device is not split", mark="~"),
    flag("auto-sharding", "let the library place operators (only with several shards)", default=True, mark="sim"),
    flag("pipeline", "pipeline over the shards; with one device there is nothing to pipeline", mark="~"),
    flag("recompute", "compute activations again in the backward pass instead of keeping them", mark="~"),
    flag("simulation", "use a simulated device: there is none, so this is refused", mark="sim"),
    flag("save-graph", "write model.onnx into the working directory"),
    flag("use-zero-values", "zeros for weights, inputs and labels instead of random numbers"),
    SeedOption(
        name="report-hw-cycle-count",
        help="after the steps, print the nanoseconds of one host call (any text but the empty one means yes)",
        default=False,
        mark="~",
        parse=truth,
        metavar="TEXT",
    ),
    flag("report", REPORT, mark="~", aside=True),
    flag("tensor-tile-mapping", "write the mapping of tensors to tiles", mark="sim", aside=True),
)

TENSORFLOW: tuple[SeedOption, ...] = (
    flag("use-generated-data", GENERATED, mark="~"),
    count("batches-per-step", 1000, BATCHES),
    count("steps", 5, STEPS),
    flag("save-graph", "write the graph for TensorBoard into logs/<date_time_zone> beside the script", mark="~"),
    planner("convolution-options", "convolutions"),
    planner("matmul-options", "matrix products"),
    flag("enable-half-partials", "allow products of 16-bit numbers to be added up in 16 bits", mark="~"),
    count("shards", 1, "processors to spread the graph over: more than 1 is not implemented"),
    count("device-id", -1, "index of the GPU, where there is one; else 0, like -1, is the CPU", at_least=-1, mark="~"),
    flag("use-zero-values", "zeros instead of random numbers as inputs made on the device"),
    count("replicas", 1, "copies of the program, each with its own inputs and its share of the threads", mark="~"),
    flag("report-hw-cycle-count", "print the nanoseconds of every host call", mark="~"),
    flag("report", REPORT, mark="~", aside=True),
)

HMC: tuple[SeedOption, ...] = (
    count("steps", 100, STEPS),
    count("hmc-steps", 10000, "transitions in one host call"),
    count("leapfrog-steps", 5, "leapfrog moves of one transition"),
    flag("save-graph", "write the graph for TensorBoard into logs/<date_time_zone> beside the script", mark="~"),
    flag("report", REPORT, mark="~", aside=True),
)

EMULATE_HALF = flag(
    "emulate-half", "compute in 16 bits even where the CPU has no such floats, which is slow", aside=True
)
EXTRA: tuple[SeedOption, ...] = (
    extra("backend", "runtime to measure", str, "NAME"),
    extra(
        "budget",
        "wall time for the whole command, such as 2m: fewer batches or steps where needed (default: $LAYERMARK_BUDGET)",
        seconds,
        "TIME",
        variable="LAYERMARK_BUDGET",
    ),
    extra(
        "precision",
        "compute type . stored-weight type (default: the seed's, 16.16, in HMC 32.32); fp32 where the CPU has no half",
        choice(*PRECISIONS),
        "|".join(PRECISIONS),
    ),
    EMULATE_HALF,
    extra("execution", "eager, compile, ... or auto: the better of a short trial", str, "WORD", "auto"),
    extra("threads", "thread budget (default: every CPU of this process)", integer(1), "N"),
    extra(
        "store",
        "where the result is kept (default: $LAYERMARK_STORE, else a file in the user's data folder)",
        str,
        "URL",
    ),
)

TRAIN = flag("train", "forward, backward and update instead of forward only")
NO_TRAIN = flag("no-train", "forward only (the default)", sets="train", to=False)
POPNN = flag("popnn", "use the runtime's fused recurrent layer instead of one cell per time step", mark="~")
ACTIVATION = flag("include-activation", "apply ReLU to the output")
