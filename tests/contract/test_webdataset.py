"""WebDatasets whose pictures are saved tensors."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layermark.data.base import BadData, Place
from layermark.data.opening import open_source
from layermark.data.preprocess import Preprocess

torch = pytest.importorskip("torch")
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 40, 30), "uint8")


class Trap:
    """What a hostile data set holds."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must never be printed",)


def written(folder: Path, held: Any, **facts: Any) -> Path:
    """A data set of one sample."""
    saved = io.BytesIO()
    torch.save(held, saved)
    with tarfile.open(folder / "validation-000000.tar", "w") as archive:
        for name, data in (("a.pth", saved.getvalue()), ("a.cls", b"7")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    (folder / "metadata.json").write_text(json.dumps({"format": "tensor", "validation_length": 1, **facts}))
    return folder


def shaped(folder: Path) -> np.ndarray[Any, Any]:
    """The first picture, as a network of 40 x 30 is fed with it."""
    sample, wanted = open_source("auto", Place(folder)).read(0), Preprocess((40, 30), dtype="uint8", normalise="none")
    out = wanted.empty(1)
    wanted.write(sample.decode(), sample, 0, out[0])
    assert 7 == sample.label
    return out[0]


def test_tensors_are_read_and_what_was_cropped_is_not_cropped_again(tmp_path: Path) -> None:
    assert not np.array_equal(PIXELS, shaped(written(tmp_path, torch.from_numpy(PIXELS))))
    done = {"validation_transform_pipeline": ["Resize(256)", "CenterCrop(40, 30)"]}
    assert np.array_equal(PIXELS, shaped(written(tmp_path, torch.from_numpy(PIXELS), **done)))


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (Trap(), "weights-only loader refuses it"),
        (torch.zeros(3, 4, 4), "expected a tensor of bytes"),
        ({}, "expected a"),
    ],
    ids=["code", "floats", "dictionary"],
)
def test_what_is_no_picture_is_named(tmp_path: Path, capfd: Any, held: Any, reason: str) -> None:
    sample = open_source("auto", Place(written(tmp_path, held))).read(0)
    with pytest.raises(BadData, match=f"tar: a: .*{reason}"):
        sample.decode()
    assert "never be printed" not in capfd.readouterr().out


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="format 'png': expected img or tensor"):
        open_source("auto", Place(written(tmp_path, torch.zeros(1), format="png")))
