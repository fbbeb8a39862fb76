"""How many pictures a program sorts into the class that their labels name."""

from __future__ import annotations

import numpy as np

from layermark.backends.base import Program
from layermark.laws import random_generator
from layermark.workloads.base import Task


def right_answers(program: Program, task: Task, batches: int) -> int:
    """Run so many batches one by one and count the pictures whose largest output is that of their class.

    A picture with an output that is not finite is not counted: of such numbers NumPy takes the first for the largest.
    Pictures that are made up all have the same label, drawn from the seed.
    """
    right = 0
    for _ in range(batches):
        program.run(1)
        (logits,) = program.outputs().values()
        answers = np.argmax(logits, axis=1)
        labels = task.stream.labels if task.stream else made_up_label(task.seed, logits.shape[1])
        finite = np.isfinite(logits).all(axis=1)
        right += int(np.count_nonzero(finite & (answers == labels)))
    return right


def made_up_label(seed: int, classes: int) -> int:
    """The class that all made-up pictures belong to; the last class is never drawn, as in the seeds' programs."""
    return int(random_generator(seed, "label").integers(0, max(1, classes - 1)))
