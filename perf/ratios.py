"""Ratios with intervals, and the one way in which the scripts of this folder print them."""

import json
import math
import os
import subprocess
import sys

import numpy as np

from layermark.stats.compare import student_quantile

RESAMPLES = 4000


def interval(ours, theirs):
    """The ratio of two sets of paired rates: median of the pairs' ratios, with its 95 % bootstrap interval."""
    ratios = np.asarray(ours) / np.asarray(theirs)
    chosen = np.random.default_rng(1).integers(0, len(ratios), (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[chosen], axis=1), [0.025, 0.975])
    return float(np.median(ratios)), float(low), float(high)


def interval_of_starts(starts):
    """The ratio of paired rates from several starts of both programs: what lies between starts counts, not the pairs.

    The mean of the starts' median ratios with Student's 95 % interval: however many blocks one start has, it lies where
    it lies in memory, which may be 3 % of a small layer.
    """
    logs = [np.median([np.log(mine / theirs) for mine, theirs in pairs]) for pairs in starts]
    middle, half = np.mean(logs), math.inf
    if len(logs) > 1:
        half = student_quantile(0.975, len(logs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(logs))
    return tuple(float(np.exp(each)) for each in (middle, middle - half, middle + half))


def show(label, ours, theirs, goal):
    """Print one line and return whether the goal was reached."""
    ratio, low, high = interval(ours, theirs)
    reached = ratio >= goal
    print(
        f"{label:50} {ratio:6.3f}  [{low:.3f}, {high:.3f}]  goal {goal:.2f}  {'ok' if reached else 'MISSED'}",
        flush=True,
    )
    return reached


def layermark_json(*arguments, environment=None):
    """Run a command with `--json` and return what it printed."""
    command = [sys.executable, "-m", "layermark", *arguments, "--json"]
    done = subprocess.run(command, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"{' '.join(command)} ended with status {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]
