"""What a run of the training program is called, and where it writes."""

from pathlib import Path

import pytest

from layermark import __version__
from layermark.errors import UserError
from layermark.seeds.cnns.train_names import run_folder, run_name
from layermark.seeds.cnns.train_request import Instance

from .train_commands import MADE_UP, TINY, document, read


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("S10", "RN50_bs16x1024p_BN_16.32"),
        ("S11", "RN50_bs16x256p_BN_16.32"),
        ("S12", "RNX101_bs6x2rx64p_GN32_16.16"),
        ("S13", "RNX101_bs6x16p_GN32_16.16"),
        ("S14", "EfficientNet-B4_bs5x40p_GN4_16.32_380x380"),
        ("S17", "EfficientNet-B4_bs5x40p_GN4_16.32_380x380"),
    ],
)
def test_names_of_the_documents_runs(train_set, name, expected):
    assert run_name(document(name, train_set)) == f"{expected}_v{__version__}"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (f"{TINY} --replicas 2 --gradient-accumulation-count 8", "RN8_bs32x2rx8a_BN_16.16"),
        (f"{TINY} --no-stochastic-rounding --name-suffix penguin", "RN8_bs32_BN_16.16_noSR_penguin"),
        (f"{MADE_UP} --image-size 64 --model-size 14 --precision 32.32", "RN14_bs4_GN32_32.32_64x64"),
        (
            f"--model efficientnet {MADE_UP} --replicas 2 --gradient-accumulation-count 8 --no-stochastic-rounding",
            "EfficientNet-B0_bs4x8ax2r_GN4_16.16",
        ),
        (f"--model squeezenet {MADE_UP} --base-learning-rate -8", "SN_bs4_noBN_16.16"),
    ],
)
def test_names_follow_the_options(argv, expected):
    assert run_name(read(argv)) == f"{expected}_v{__version__}"


def test_the_folder_of_a_run():
    made = run_folder(read(f"{TINY} --log-dir logs/walrus --name-suffix penguin"))
    assert made.parent == Path("logs/walrus")
    assert len(made.name) == len(f"RN8_bs32_BN_16.16_penguin_v{__version__}_abc")
    assert run_folder(read(f"{TINY} --no-logs")) is None
    assert run_folder(read(f"{TINY} --logs-path here")) == Path("here")


@pytest.mark.parametrize("left_behind", ["training.csv", "ckpt/ckpt-2.json"])
def test_a_folder_of_another_run_is_refused(tmp_path, left_behind):
    (tmp_path / "ckpt").mkdir()
    typed = f"{TINY} --logs-path {tmp_path}"
    assert tmp_path == run_folder(read(typed))
    (tmp_path / left_behind).touch()
    with pytest.raises(UserError, match=r"this folder holds another run; .* --restore-path"):
        run_folder(read(typed))
    (tmp_path / "arguments.json").write_text("{}")
    assert tmp_path == run_folder(read(f"{typed} --restore-path {tmp_path}"))


def test_only_the_first_instance_writes_unless_all_shall():
    second = Instance(count=2, index=1, local_replicas=1)
    assert run_folder(read(f"{TINY} --no-validation", instance=second)) is None
    assert run_folder(read(f"{TINY} --no-validation --log-all-instances yes", instance=second)) is not None
