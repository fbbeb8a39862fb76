"""How full an account profiles give: the operators' sum against the timed step, the share tied to nodes, the overhead.

Every row is a `layermark profile` of its own, in a store of its own, so that a row can be run alone:

    python perf/profiles.py --runtimes torch --workloads resnet50

Goals: for the convolutional networks the sum within 10 % of the timed step, and 95 % of the time tied to nodes on every
runtime. A runtime that works on several operators at once adds up to more than the step; a small LSTM spends time
between operators; both are printed, and the profiler's own overhead beside them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from layermark.backends.base import backend

ROWS = {
    ("torch", "eager"): "PyTorch",
    ("torch", "compile"): "PyTorch, compiled",
    ("tensorflow", "function"): "TensorFlow",
    ("jax", "jit"): "JAX",
    ("onnxruntime", "sequential"): "ONNX Runtime",
    ("openvino", "latency"): "OpenVINO",
}
WORKLOADS = {"resnet50": True, "efficientnet_b0": True, "lstm_multi": False}
"""Whether the operators must add up to the step."""
GAP, TIED = 0.10, 0.95


def main():
    """Print a row for every workload and runtime; return 1 if a goal was missed."""
    options = parsed()
    print(
        f"{'workload':<16} {'runtime':<20} {'step':>10} {'operators':>10} {'sum/step':>9} {'tied':>7} {'overhead':>9}"
    )
    missed = 0
    for workload in options.workloads.split(","):
        for runtime, execution in ROWS:
            if runtime in options.runtimes.split(",") and execution in (options.executions or execution).split(","):
                missed += not row(workload, runtime, execution, options)
    return 1 if missed else 0


def parsed():
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS), metavar="NAME,...")
    parser.add_argument("--runtimes", default=",".join(dict.fromkeys(name for name, _ in ROWS)), metavar="NAME,...")
    parser.add_argument("--executions", default="", metavar="NAME,...")
    parser.add_argument("--batch-size", default="1", metavar="N")
    parser.add_argument("--threads", default="1", metavar="N")
    return parser.parse_args()


def row(workload, runtime, execution, options):
    """Measure and print one row; return whether its goals were reached."""
    head = f"{workload:<16} {ROWS[runtime, execution]:<20}"
    if not backend(runtime).installed:
        print(f"{head} not installed")
        return True
    found = profile(workload, runtime, execution, options)
    if found is None:
        print(f"{head} no profile")
        return False
    ratio, overhead = found["sum_s"] / found["step_s"], found["overhead"]
    figures = f"{found['step_s'] * 1e3:>7.2f} ms {found['sum_s'] * 1e3:>7.2f} ms {ratio:>9.3f} {found['tied']:>7.1%}"
    summed, tied = abs(ratio - 1) <= GAP or not WORKLOADS.get(workload, True), found["tied"] >= TIED
    verdict = "ok" if summed and tied else " and ".join(["sum"] * (not summed) + ["tied"] * (not tied)) + " missed"
    print(f"{head} {figures} {overhead:>+9.1%}  {verdict}", flush=True)
    return summed and tied


def profile(workload, runtime, execution, options):
    """The profile's document; None where the run failed or has none."""
    with tempfile.TemporaryDirectory(prefix="layermark-perf-") as folder:
        store = {"LAYERMARK_STORE": f"sqlite:///{Path(folder) / 'results.db'}"}
        command = [sys.executable, "-m", "layermark", "profile", workload, "--backend", runtime]
        command += ["--execution", execution, "--batch-size", options.batch_size, "--threads", options.threads]
        command += ["--profile-dir", folder, "--json"]
        done = subprocess.run(command, env={**os.environ, **store}, capture_output=True, text=True, check=False)
    documents = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not documents:
        print(done.stderr.strip(), file=sys.stderr)
    return documents[0].get("profile") if documents else None


if __name__ == "__main__":
    sys.exit(main())
