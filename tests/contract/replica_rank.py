"""One rank of replicas in a process of its own, without a session around it: `python -m contract.replica_rank ...`."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from layermark.backends.base import backend
from layermark.spec import Group, Spec
from layermark.worker.picture_task import fed_task
from layermark.worker.training import Trainer
from layermark.worker.verify import verify

UPDATES = 10


def main(folder, rank):
    """Take part in one run after the other; each spec has the addresses of its own ranks."""
    for number, (doc, addresses, stages) in enumerate(json.loads((folder / "specs.json").read_text())):
        spec = Spec.from_json(doc)
        found = backend(spec.backend)
        found.load()
        group = Group(rank=rank, addresses=tuple(addresses), stages=stages) if len(addresses) > 1 else None
        made = fed_task(spec, group)
        program = found.prepare(spec, made)
        if rank:
            program.follow()
        elif spec.data == "real":
            go_on(program, spec, made, folder, number)
        else:
            lead(program, spec, made, folder, number)
        program.close()
        if made.stream is not None:
            made.stream.close()


def lead(program, spec, made, folder, number):
    """Prove it where there is an answer, then make ten updates and write down where they led."""
    answer, facts = folder / f"answer{number}.npz", {}
    if answer.exists():
        facts["verified"] = dataclasses.asdict(verify(program, spec, made, answer))
    program.micro_batches = spec.update.micro_batches
    program.load(made.weights())
    program.learning_rate = 0.05
    program.run(UPDATES * program.micro_batches)
    totals = program.totals()
    held = {f"weight:{name}": each for name, each in program.weights().items()}
    held |= {f"state:{name}": each for name, each in program.state().items()}
    np.savez(folder / f"weights{number}.npz", **held, loss=totals.loss, right=totals.right or 0)
    facts |= {"settings": dict(program.settings), "communication": program.communication()}
    (folder / f"facts{number}.json").write_text(json.dumps(facts))


def go_on(program, spec, made, folder, number):
    """Train, save halfway, and go on from there twice: at once, and from the checkpoint."""
    trainer = Trainer(program, spec, made)
    trainer.begin(spec.update.micro_batches)
    lost = trainer.train(2, 0.05)["loss"]
    saved = trainer.save(str(folder / "ckpt"), 2, 0.0)["path"]
    trainer.train(2, 0.05)
    whole = {name: np.array(each) for name, each in program.weights().items()}
    trainer.begin(spec.update.micro_batches, saved)
    trainer.train(2, 0.05)
    again = {f"restored:{name}": np.array(each) for name, each in program.weights().items()}
    np.savez(folder / f"weights{number}.npz", **whole, **again, loss=lost)
    facts = {"settings": dict(program.settings), "communication": program.communication()}
    (folder / f"facts{number}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
