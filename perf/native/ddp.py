"""Replicas by hand: a training step around DistributedDataParallel, and a bare loop of all-reduces.

`python -m native.ddp RANK SIZE PORT MODEL BATCH SECONDS BYTES,...`: rank 0 prints both as JSON.
"""

import json
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from native.cnns.networks import NETWORKS, pictures
from native.training.data import MOMENTUM, RATE, labels
from native.training.torch import Network

REPEATS = 7


def median_s(work, least):
    """How long the slowest rank takes, after a barrier each time, over so many seconds."""
    work()
    times = []
    while sum(times) < least or len(times) < REPEATS:
        dist.barrier()
        began = time.perf_counter()
        work()
        taken = torch.tensor(time.perf_counter() - began, dtype=torch.float64)
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        times.append(float(taken))
    return statistics.median(times)


def step_of(model, batch):
    """One update of one batch on every rank."""
    module = Network(NETWORKS[model]()).to(memory_format=torch.channels_last)
    shared = DistributedDataParallel(module, bucket_cap_mb=10, gradient_as_bucket_view=True, broadcast_buffers=False)
    sgd = torch.optim.SGD(module.parameters(), RATE, MOMENTUM, foreach=True)
    x, target = torch.from_numpy(pictures(batch)[0]), torch.from_numpy(labels(batch)[0])
    x = x.contiguous(memory_format=torch.channels_last)

    def step():
        sgd.zero_grad()
        functional.cross_entropy(shared(x), target).backward()
        sgd.step()

    return step


def main(rank, size, port, model, batch, seconds, sizes):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[int(rank) % len(cpus)]})
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=int(rank), world_size=int(size))
    found = {"step_s": median_s(step_of(model, int(batch)), float(seconds)), "all_reduce": {}}
    for count in filter(None, sizes.split(",")):
        message = torch.zeros(int(count) // 4)
        found["all_reduce"][count] = median_s(lambda each=message: dist.all_reduce(each), 0.0)
    if rank == "0":
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
