"""WebDatasets whose pictures are saved tensors."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layermark.data.base import BadData, Place
from layermark.data.opening import open_source
from layermark.data.preprocess import Preprocess
from layermark.data.tensors import picture

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


def test_a_tensor_that_is_a_view_of_another_is_read_as_torch_reads_it(tmp_path: Path) -> None:
    whole = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (50, 50, 4), "uint8"))
    view = whole.permute(2, 0, 1)[:3, 5:45, 10:40]
    sample = open_source("auto", Place(written(tmp_path, view))).read(0)
    assert np.array_equal(view.permute(1, 2, 0).numpy(), sample.decode())


def test_what_torch_did_not_write_is_named() -> None:
    with pytest.raises(BadData, match=r"a: not an archive that torch.save writes"):
        picture(b"nothing of the kind", "a")
    saved = io.BytesIO()
    torch.save(torch.from_numpy(PIXELS), saved)
    short = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved.getvalue())) as whole, zipfile.ZipFile(short, "w") as cut:
        for name in whole.namelist():
            cut.writestr(name, whole.read(name)[:100] if "/data/" in name else whole.read(name))
    with pytest.raises(BadData, match=r"a: refused.*needs 3600 bytes, its storage has 100"):
        picture(short.getvalue(), "a")


@pytest.mark.parametrize(
    ("held", "reason"),
    [
        (Trap(), "refused, since it is more than a tensor of bytes: it names __builtin__.print"),
        (torch.zeros(3, 4, 4), "refused, since it is more than a tensor of bytes: it names torch.FloatStorage"),
        ({}, "expected a tensor of bytes"),
        (torch.zeros(4, 4, dtype=torch.uint8), "expected a tensor of bytes"),
    ],
    ids=["code", "floats", "dictionary", "two dimensions"],
)
def test_what_is_no_picture_is_named(tmp_path: Path, capfd: Any, held: Any, reason: str) -> None:
    sample = open_source("auto", Place(written(tmp_path, held))).read(0)
    with pytest.raises(BadData, match=f"tar: a: .*{reason}"):
        sample.decode()
    assert "never be printed" not in capfd.readouterr().out


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="format 'png': expected img or tensor"):
        open_source("auto", Place(written(tmp_path, torch.zeros(1), format="png")))
