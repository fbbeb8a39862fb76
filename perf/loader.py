"""The loader against PyTorch's DataLoader with Pillow, at the same number of processes, in alternation.

Both read the same JPEGs, bring the short side to 256, cut out 224 x 224, normalise, and give float32 batches.
"""

import argparse
import io
import sys
import tempfile
import time
from pathlib import Path

from ratios import show

GOAL = 0.9
SIZE = 224


class Folder:
    """What most people write: Pillow decodes and resizes, NumPy normalises."""

    def __init__(self, paths):
        self.paths = paths

    def __len__(self):
        return 1 << 30

    def __getitem__(self, index):
        import numpy as np
        import torch
        from PIL import Image

        picture = Image.open(io.BytesIO(self.paths[index % len(self.paths)].read_bytes())).convert("RGB")
        width, height = picture.size
        short = min(width, height)
        picture = picture.resize((int(256 * width / short), int(256 * height / short)), Image.Resampling.BILINEAR)
        left, top = round((picture.width - SIZE) / 2), round((picture.height - SIZE) / 2)
        pixels = np.asarray(picture.crop((left, top, left + SIZE, top + SIZE)))
        mean, deviation = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
        values = (pixels.astype("float32") / 255 - mean) / deviation
        return torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1))), index % 1000


def theirs(paths, batch, workers):
    """An endless iterator over PyTorch's loader."""
    from torch.utils.data import DataLoader

    return iter(DataLoader(Folder(paths), batch_size=batch, num_workers=workers, multiprocessing_context="spawn"))


def ours(folder, batch, workers):
    """Layermark's loader over the same folder."""
    from layermark.data.feed import opened, pipeline_of
    from layermark.data.loader import loader
    from layermark.data.preprocess import Preprocess
    from layermark.spec import Loading

    loading = Loading(data_dir=str(folder))
    return loader(pipeline_of(opened(loading)[0], loading, Preprocess((SIZE, SIZE))), batch, workers=workers)


def rate(batches, count, batch):
    """Images per second over so many batches."""
    began = time.perf_counter()
    for _ in range(count):
        next(batches)
    return count * batch / (time.perf_counter() - began)


def drain(batches, count):
    """Take what was made ahead while the other was timed."""
    for _ in range(count):
        next(batches)


def main():
    """Print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    from layermark.data.photographs import write_photographs

    with tempfile.TemporaryDirectory() as folder:
        paths = write_photographs(Path(folder))
        mine, native = ours(folder, args.batch_size, args.workers), theirs(paths, args.batch_size, args.workers)
        rates = {"layermark": [], "dataloader": []}
        for _ in range(args.rounds):
            for name, batches in (("layermark", mine), ("dataloader", native)):
                drain(batches, 2 * args.workers + 2)
                rates[name].append(rate(batches, args.batches, args.batch_size))
        mine.close()
        return int(not show(f"{args.workers} processes: layermark / DataLoader with Pillow", *rates.values(), GOAL))


if __name__ == "__main__":
    sys.exit(main())
