"""The lines and tables of the training program, its summary, and MLPerf's events."""

import csv
import json

import pytest
from mlperf_logging.compliance_checker.mlp_parser import parse_file

from layermark.seeds.cnns.logs import Log
from layermark.seeds.cnns.mlperf import MlperfLog
from layermark.seeds.cnns.train_lines import (
    TRAINING,
    VALIDATION,
    Progress,
    Validated,
    restoring_line,
    saved_line,
    summary,
)
from layermark.seeds.cnns.train_opening import arguments

from .train_commands import TINY, read

POINT = Progress(
    step=3,
    iteration=12,
    epoch=0.15,
    rate=0.1641,
    loss_batch=6.5,
    loss_mean=6.912,
    accuracy_batch=0.5,
    accuracy_mean=0.412,
    update_s=13.271062,
    images_per_s=1234.56,
    total_s=55.2,
)


def test_a_line_of_training():
    assert POINT.line() == (
        "step:      3, iteration:     12, epoch:   0.15, lr: 0.1641, loss:  6.912, top-1 accuracy:  0.412%, "
        "img/sec: 1234.56, time: 13.271062, total_time:     55.2"
    )


FOUND = Validated(name="ckpt-1600", iteration=1600, epoch=20.48, accuracy=71.234, seconds=20.0, pictures=50_000)


def test_a_line_of_validation():
    start = "Validation top-1 accuracy [ckpt-1600] (iteration:   1600, epoch:  20.48, img/sec: 2500.00, time: 20.000000"
    assert FOUND.line() == f"{start}): 71.234%"
    latency = Validated(**{**vars(FOUND), "latency_ms": 1.5})
    assert latency.line() == f"{start}, latency (ms): 1.500): 71.234%"


def test_lines_of_checkpoints():
    assert saved_line("a/ckpt-0") == "Saved checkpoint to a/ckpt-0"
    assert restoring_line("a/ckpt-7") == "Restoring training from latest checkpoint: a/ckpt-7"


def test_tables_and_options_of_the_folder(tmp_path, capsys):
    log = Log(tmp_path / "run")
    request = read(TINY)
    log.options("arguments.json", arguments(request))
    for _ in range(2):
        log.row(TRAINING, POINT.row())
        log.row(VALIDATION, FOUND.row())
    log.say(POINT.line())
    rows = list(csv.reader((tmp_path / "run" / "training.csv").open()))
    assert ",".join(rows[0]) == (
        "step,iteration,epoch,lr,loss_batch,loss_avg,train_acc_batch,train_acc_avg,it_time,img_per_sec,total_time"
    )
    assert rows[1] == rows[2] == [str(value) for value in POINT.row().values()]
    rows = list(csv.reader((tmp_path / "run" / "validation.csv").open()))
    assert rows[0] == ["name", "iteration", "epoch", "val_acc", "val_time", "val_size", "img_per_sec"]
    assert rows[1] == ["ckpt-1600", "1600", "20.48", "71.234", "20.0", "50000", "2500.0"]
    kept = json.loads((tmp_path / "run" / "arguments.json").read_text())
    assert kept["model_size"] == 8
    assert kept["global_batch_size"] == 32
    assert (tmp_path / "run" / "log.txt").read_text() == f"{POINT.line()}\n"
    assert capsys.readouterr().out == f"{POINT.line()}\n"


def test_the_summary_drops_the_first_line_and_shows_the_median():
    assert summary([1.0, 10.0, 20.0, 60.0]) == [
        "Throughput without the first line: min=10.00 img/sec, max=60.00 img/sec, mean=30.00 img/sec, "
        "std=21.60 img/sec.",
        "Median throughput of 3 lines: 20.00 img/sec.",
    ]
    assert summary([4.0])[1] == "Median throughput of 1 line: 4.00 img/sec."
    assert summary([]) == []


@pytest.mark.parametrize(
    ("optimiser", "name", "rate", "warmup"),
    [
        ("momentum", "sgd", "sgd_opt_base_learning_rate", "opt_learning_rate_warmup_epochs"),
        ("SGD", "sgd", "sgd_opt_base_learning_rate", "opt_learning_rate_warmup_epochs"),
        ("LARS", "lars", "lars_opt_base_learning_rate", "lars_opt_learning_rate_warmup_epochs"),
        ("RMSprop --rmsprop-decay 0.9", "rmsprop", "opt_base_learning_rate", "opt_learning_rate_warmup_epochs"),
    ],
)
def test_mlperfs_own_package_reads_its_lines(tmp_path, optimiser, name, rate, warmup):
    lines = ["some other line"]
    log = MlperfLog(lines.append)
    log.settings(read(f"{TINY} --optimiser {optimiser} --gradient-accumulation-count 2 --seed 9"))
    log.begin()
    log.progress(POINT)
    log.validated(FOUND)
    log.end("success")
    (tmp_path / "log").write_text("\n".join(lines))
    found, broken = parse_file(str(tmp_path / "log"), ruleset="5.0.0")
    values = {each.key: each.value["value"] for each in found}
    assert not broken
    assert len(found) == len(lines) - 1
    assert (values["global_batch_size"], values["gradient_accumulation_steps"]) == (64, 2)
    assert (values["opt_name"], values[rate], values[warmup]) == (name, 1.0, 5.0)
    assert (values["seed"], values["train_samples"]) == (9, 50_000)
    assert values["eval_accuracy"] == pytest.approx(0.71234)
    order = [each.key for each in found if each.key.endswith(("_start", "_stop"))]
    assert order == ["init_start", "init_stop", "run_start", "run_stop"]
    assert found[-1].value["metadata"] == {"status": "success"}


def test_mlperfs_lines_are_said_only_where_they_are_wanted():
    lines = []
    MlperfLog(lines.append, wanted=False).begin()
    assert not lines
