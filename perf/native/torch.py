"""The workloads by hand in PyTorch: `torch_inference.py` and `torch_training.py`, served."""

import os
import sys
from functools import partial

import torch

from native.data import draw
from native.serve import serve
from native.torch_inference import inference
from native.torch_training import training

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.set_num_interop_threads(1)
torch.set_flush_denormal(True)


def formulations_of(workload, mode):
    """The formulations, bound to their data."""
    data = draw(workload, mode)
    formulations = inference(workload) if mode == "infer" else training(workload)
    return {name: partial(formulation, workload, data) for name, formulation in formulations.items()}


if __name__ == "__main__":
    with torch.inference_mode(sys.argv[2] == "infer"):
        serve(formulations_of)
