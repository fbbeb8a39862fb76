"""One rank of pipelines in a process of its own, without a session around it: `python -m contract.stage_rank ...`."""

import dataclasses
import json
import sys
from pathlib import Path

from layermark.backends.base import backend
from layermark.spec import Spec
from layermark.worker.verify import verify
from layermark.workloads.base import task


def main(folder, rank, size):
    """Take part in the pipelines of all specs, one after the other."""
    backend("torch").load()
    import torch.distributed as dist

    from layermark.backends.torch.pipeline import prepare

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    found = []
    for number, doc in enumerate(json.loads((folder / "specs.json").read_text())):
        spec = Spec.from_json(doc)
        program = prepare(spec, task(spec))
        if rank:
            program.follow()
        else:
            found.append(proven(program, spec, folder / f"answer{number}"))
        program.close()
    dist.destroy_process_group()
    if not rank:
        (folder / "results.json").write_text(json.dumps(found))


def proven(program, spec, answer):
    """What rank 0 finds out about a pipeline."""
    found = dataclasses.asdict(verify(program, spec, task(spec), answer))
    program.run(2 * program.whole(program.least_batches))
    return {"verified": found, "settings": dict(program.settings), "events": program.pipeline()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
