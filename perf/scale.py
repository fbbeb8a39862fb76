"""What ranks cost each other.

`copies`: two replicas of one thread each against twice one of them while the other rests. Both ranks and the first
alone take turns in steps of the same size; printed is the ratio of the rate of both to twice that of one.
`bubble`: the bubble of a pipeline of two balanced stages, on a core each, against the one that schedule and stage
times predict. `together`: two replicas that train together against a step around DistributedDataParallel written by
hand, and their all-reduce against a bare loop, in runs that take turns.

A row that cannot be measured is named, the others go on, and the status is 1.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from ratios import layermark_json, show

from layermark.axes import expand
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.ports import Ports
from layermark.launch.process import Crew, worker_environment
from layermark.session.deadline import Deadline
from layermark.session.resources import Resources
from layermark.session.team import Team

RUNTIMES = ("onnxruntime", "openvino", "torch", "tensorflow", "jax")
MODELS = ("resnet50", "efficientnet-b0")
GOAL = 0.95
STEP_S = 0.5
ROWS = ("copies", "bubble", "together")
BUBBLE_WITHIN = 0.2
MICRO_BATCHES = 8


def rates(team, batches):
    """The rate of all ranks, and of the first alone, from one step of each."""
    together = team.step(batches)
    team.time_alone(batches)
    if together is None or not team.alone:
        raise RuntimeError(getattr(team.finish(), "reason", "a rank failed"))
    alone = sum(block.samples_ns[0] for block in team.alone) / len(team.alone)
    return team.size * batches / together.samples_ns[0], team.size * batches / alone


def measure_row(backend, model, args):
    """Print one row; return whether the goal was reached."""
    values = {"backend": backend, "batch_size": str(args.batch), "replicas": "2", "threads": "2"}
    formulation = {"formulation": "tuned"} if backend == "jax" else {}
    spec = expand([model], values | formulation).specs[0]
    with Crew() as crew:
        team = Team(spec, Resources.of(crew, Deadline(None), 600.0))
        if not (team.prepare() and team.prove()):
            raise RuntimeError(getattr(team.finish(), "reason", "not verified"))
        batches = max(1, round(STEP_S / team.batch_seconds()))
        pairs = [rates(team, batches) for _ in range(args.pairs)]
    return show(f"{backend} {model} batch {args.batch}: 2 replicas / 2 x 1", *zip(*pairs, strict=True), GOAL)


def run_once(model, args, **options):
    """The document of one training run of Layermark on two cores."""
    given = {"backend": "torch", "mode": "train", "optimiser": "momentum", "batch_size": args.batch, "threads": 2}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (given | options).items()]
    (found,) = layermark_json("run", model, *words)
    if found["status"] != "ok":
        raise RuntimeError(f"{' '.join(words)}: {found['reason']}")
    return found


def measure_bubble(model, args):
    """Print measured against predicted bubble; return whether they agree."""
    options = {"pipeline_splits": "auto", "stages": 2, "accumulation": MICRO_BATCHES, "execution": "eager"}
    facts = [run_once(model, args, **options)["pipeline"] for _ in range(args.runs)]
    ratios = [each["bubble"] / each["bubble_predicted"] for each in facts]
    ratio, seen = statistics.median(ratios), ", ".join(f"{each:.3f}" for each in ratios)
    reached = abs(ratio - 1) <= BUBBLE_WITHIN
    stages = ", ".join(f"{each['share']:.0%}" for each in facts[-1]["stages"])
    print(f"{model}: bubble measured / predicted {ratio:.3f} ({seen})  stages {stages}  ", end="")
    print(f"goal within {BUBBLE_WITHIN:.0%}  {'ok' if reached else 'MISSED'}", flush=True)
    return reached


def by_hand(model, args, sizes):
    """What two ranks written by hand take."""
    spec = expand([model], {"backend": "torch", "batch_size": str(args.batch), "threads": "1", "mode": "train"}).specs[
        0
    ]
    with Ports(2) as ports:
        port = ports.addresses()[0].rpartition(":")[2]
        facts = [port, model, str(args.batch), str(args.seconds), ",".join(map(str, sizes))]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "native.ddp", str(rank), "2", *facts],
                cwd=Path(__file__).parent,
                env={**os.environ, **worker_environment(spec)},
                stdout=subprocess.PIPE,
            )
            for rank in range(2)
        ]
        said = [each.communicate()[0] for each in ranks]
    if any(each.returncode for each in ranks):
        raise RuntimeError("a rank written by hand failed")
    return json.loads(said[0])


def measure_together(model, args):
    """Print the rows of replicas that train together; return whether the goals were reached."""
    steps, sums = [], {}
    for _ in range(args.runs):
        ours = run_once(model, args, replicas=2, execution="eager")
        ladder = {each["bytes"]: each["seconds"] for each in ours["communication"]["all_reduce"]}
        hand_written = by_hand(model, args, list(ladder))
        steps.append((ours["throughput"]["value"], 2 * args.batch / hand_written["step_s"]))
        for size, seconds in ladder.items():
            sums.setdefault(size, []).append((1 / seconds, 1 / hand_written["all_reduce"][str(size)]))
    label = f"{model} batch {args.batch}: 2 replicas"
    reached = [show(f"{label} / DDP by hand", *zip(*steps, strict=True), GOAL)]
    for size, pairs in sorted(sums.items()):
        reached.append(show(f"{label}, all-reduce {size} B / bare loop", *zip(*pairs, strict=True), GOAL))
    return all(reached)


def measured(label, failed, measure, *given):
    """Whether a row has reached its goal; one that cannot be measured is named, and noted among those that failed."""
    try:
        return measure(*given)
    except (RuntimeError, SystemExit, OSError, UserError, Unsupported, WorkerFailed) as error:
        print(f"{label}: FAILED, {error}", flush=True)
        failed.append(label)
        return False


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--runtimes", default=",".join(RUNTIMES))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--runs", type=int, default=3, help="of bubble and together")
    parser.add_argument("--seconds", type=float, default=5.0, help="of steps by hand in a run")
    args = parser.parse_args()
    rows, models = args.rows.split(","), args.models.split(",")
    copies = [(backend, model) for backend in args.runtimes.split(",") for model in models] if "copies" in rows else []
    failed = []
    reached = [measured(" ".join(each), failed, measure_row, *each, args) for each in copies]
    for name, measure in (("bubble", measure_bubble), ("together", measure_together)):
        reached += [measured(f"{model} {name}", failed, measure, model, args) for model in models if name in rows]
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
    return int(not all(reached))


if __name__ == "__main__":
    sys.exit(main())
