"""What `train.py` prints and writes down where a run goes on."""

import csv

import pytest

from layermark.seeds.cnns import train_recipe
from layermark.seeds.cnns.logs import Log
from layermark.seeds.cnns.train_printer import TrainPrinter
from layermark.session.training import Called
from layermark.training.lengths import Call

from .train_commands import TINY, read

WORDS = f"{TINY} --batch-size 4 --iterations 100 --log-freq 2 --gradient-accumulation-count 3"


def printer(folder):
    request = read(WORDS)
    return TrainPrinter(request, train_recipe.lengths(request, 120), Log(folder), folder)


def called(first, last):
    call = Call(first // 2, first, last)
    return Called(call=call, seconds=2.0, pictures=24, rate=0.1, loss=1.5, right=12, waited_s=0.0)


def rows(folder, name="training.csv"):
    return list(csv.DictReader((folder / name).read_text().splitlines()))


@pytest.mark.parametrize(("update", "kept", "step"), [(4, 2, 9), (5, 2, 12), (2, 1, 6)])
def test_steps_and_time_go_on_from_what_was_done(tmp_path, update, kept, step):
    """A host call of two updates adds three steps; the checkpoint may lie a part of a call behind the last row."""
    first = printer(tmp_path)
    for number in range(0, 6, 2):
        first.called(called(number, number + 2), line=True)
    assert [("3", "2.0"), ("6", "4.0"), ("9", "6.0")] == [(row["step"], row["total_time"]) for row in rows(tmp_path)]

    again = printer(tmp_path)
    again.restored(tmp_path / f"ckpt-{update}.json", update)
    assert kept == len(rows(tmp_path))
    last = update // 2 * 2 + 2
    again.called(called(update, last), line=True)
    row = rows(tmp_path)[-1]
    assert (str(step), str(last), str(2.0 * kept + 2.0)) == (row["step"], row["iteration"], row["total_time"])


def test_without_a_table_steps_are_counted_from_the_updates(tmp_path):
    made = printer(tmp_path)
    made.restored(tmp_path / "ckpt-4.json", 4)
    made.called(called(4, 6), line=True)
    assert "9" == rows(tmp_path)[-1]["step"]


def test_a_validation_that_a_kill_left_half_written_is_made_again(tmp_path):
    table = tmp_path / "validation.csv"
    Log(tmp_path).row(table.name, {"name": "ckpt-2", "iteration": 2, "val_acc": 3.0})
    table.write_bytes(table.read_bytes() + b"ckpt-4,4,1")
    printer(tmp_path).restored(tmp_path / "ckpt-4.json", 4)
    assert ["ckpt-2"] == [row["name"] for row in rows(tmp_path, table.name)]
