"""`layermark data`: as typed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from layermark.cli import main


def said(capsys, *argv):
    status = main(["data", *map(str, argv)])
    found = capsys.readouterr()
    return status, found.out, found.err


def test_photographs_come_without_a_network_and_say_where_from(capsys, tmp_path):
    status, out, _ = said(capsys, "images", tmp_path / "images")
    names = sorted(path.stem for path in (tmp_path / "images").glob("*.jpg"))
    assert (0, 13) == (status, len(names))
    origins = (tmp_path / "images" / "ORIGINS.txt").read_text()
    assert all(f"{name}.jpg: " in origins and f"{name}.jpg: " in out for name in names)


@pytest.mark.parametrize("form", ["tfrecord", "webdataset", "raw"])
def test_a_data_set_is_made_and_its_loader_timed(capsys, tmp_path, form):
    assert said(capsys, "imagenet", tmp_path, "--count", 5, "--format", form)[0] == 0
    typed = ("--json", "--batch-size", 2, "--loader-workers", 0, "--epochs", 2, "--image-size", 64)
    status, out, _ = said(capsys, "bench", tmp_path, *typed)
    found = json.loads(out)
    assert (0, 2, 5, {}) == (status, found["blocks"], found["samples"], found["bad"])
    assert found["images_per_s"] > 0
    assert sum(found["shares"].values()) == pytest.approx(1)


@pytest.mark.parametrize("typed", [True, False])
def test_a_budget_ends_the_timing_of_a_loader(capsys, tmp_path, monkeypatch, typed):
    said(capsys, "imagenet", tmp_path, "--count", 5, "--format", "raw")
    monkeypatch.setenv("LAYERMARK_BUDGET", "1h" if typed else "1ms")
    budget = ("--budget", "1ms") if typed else ()
    given = ("--json", "--batch-size", 2, "--loader-workers", 0, "--image-size", 64, "--epochs", 1000)
    status, out, _ = said(capsys, "bench", tmp_path, *given, *budget)
    assert 0 == status and 1 == json.loads(out)["blocks"]
    assert 2 == said(capsys, "bench", tmp_path, "--budget", "soon")[0]


def test_a_budget_is_that_of_the_whole_ladder(capsys, tmp_path, monkeypatch):
    from layermark.errors import UserError
    from layermark.session import data_stall

    def ended(teams, protocol, deadline, *, box_s, **more):
        raise UserError(f"{deadline.left() <= 30} {box_s < 30} {[team.spec.execution for team in teams]}")

    monkeypatch.setattr(data_stall, "measure_until_settled", ended)
    said(capsys, "imagenet", tmp_path, "--count", 2)
    monkeypatch.setenv("LAYERMARK_BUDGET", "30s")
    status, _, err = said(capsys, "ladder", "resnet18", "--data-dir", tmp_path)
    assert 2 == status and "True True ['eager', 'eager', 'eager']" in err


def test_bad_data_are_one_line_and_a_wrong_request(capsys, tmp_path):
    said(capsys, "imagenet", tmp_path, "--count", 3, "--format", "raw", "--classes", 1)
    bad = sorted((tmp_path / "validation" / "n00000000").iterdir())[1]
    bad.write_bytes(bad.read_bytes()[:2000])
    status, out, err = said(capsys, "bench", tmp_path, "--batch-size", 3, "--loader-workers", 0, "--epochs", 1)
    assert (2, "") == (status, out)
    assert err.startswith(f"layermark: error: {bad}: corrupt JPEG") and err.count("\n") == 1
    typed = ("--batch-size", 3, "--loader-workers", 0, "--epochs", 1, "--skip-bad")
    status, out, _ = said(capsys, "bench", tmp_path, *typed)
    assert status == 0 and "1 bad, passed over:" in out and f"  {bad}: corrupt JPEG" in out


@pytest.mark.parametrize("argv", [["bench", "nowhere"], ["imagenet"], ["imagens"], ["bench", ".", "--source", "tar"]])
def test_wrong_requests_are_one_line(capsys, tmp_path, monkeypatch, argv):
    monkeypatch.chdir(tmp_path)
    status, _, err = said(capsys, *argv)
    assert status == 2 and err.startswith("layermark: error: ") and err.count("\n") == 1


def test_the_folder_is_found_through_the_environment(capsys, tmp_path, monkeypatch):
    said(capsys, "imagenet", tmp_path / "imagenet-data", "--count", 2)
    monkeypatch.setenv("DATASETS_DIR", str(tmp_path))
    status, out, _ = said(capsys, "bench", "--loader-workers", 0, "--epochs", 1, "--batch-size", 2)
    assert status == 0 and "TfRecords, 2 samples" in out


def test_the_seeds_get_images_fills_images_without_a_network(tmp_path):
    script = Path(__file__).parents[2] / "benchmarks" / "pytorch_cnns" / "get_images.sh"
    done = subprocess.run([script], cwd=tmp_path, env={**os.environ, "PYTHON": sys.executable}, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "images").glob("*.jpg"))) == 13
