"""What the CNN programs print, and the files that they leave behind."""

import csv
import json
import re
from pathlib import Path

import pytest

from layermark.errors import UserError
from layermark.outcome import Block
from layermark.seeds.cnns.folders import run_folder, run_name
from layermark.seeds.cnns.inference import InferenceRequest
from layermark.seeds.cnns.loading import dataset_reading, host_reading
from layermark.seeds.cnns.logs import Log, ending
from layermark.seeds.cnns.printing import InferencePrinter, ValidationPrinter, counted, dropped_words, table
from layermark.seeds.cnns.validation import ValidationRequest
from layermark.session.budget import StepPlan
from layermark.spec import Plan, Spec

from .samples import MS, a_block

DOCUMENT = {"settings": {"output_type": "torch.float16"}, "spec": {"backend": "torch"}}


def a_spec(**changes):
    given = {"workload": "resnet50", "backend": "torch", "batch_size": 16, "data": "generated"}
    return Spec(**(given | changes))


def inference(log, **changes):
    request = InferenceRequest(
        spec=a_spec(**changes),
        steps=StepPlan(steps=5, batches=8, dropped=2),
        recorded={},
        notes=("mind the gap",),
        folder=Path("logs"),
        variables={},
    )
    return InferencePrinter(request, log)


def validation(log, **changes):
    request = ValidationRequest(
        spec=a_spec(data="real"),
        steps=StepPlan(steps=3, calls=2, batches=10, dropped=1),
        recorded={},
        **changes,
    )
    return ValidationPrinter(request, log)


def said(capsys):
    return capsys.readouterr().out.splitlines()


def test_inference_prints_the_seeds_lines(capsys):
    printer = inference(Log(None))
    printer.open()
    for seconds in (10, 5, 1, 2):
        printer.step(a_block(seconds * 1000, batches=8, latencies_ms=(3.14, 3.87)), 8 * 16)
    printer.end(DOCUMENT)
    lines = said(capsys)
    assert "[INFO] Note: mind the gap" in lines
    assert "[INFO] Throughput: 12.8 imgs/sec; Latency range: 3.1..3.9 ms" in lines
    assert [
        "[INFO] " + "-" * 50,
        "[INFO] Throughput at bs=16, data_mode=generated, data_type=torch.float16, num_ipus=1, of resnet50: "
        "min=64.00 imgs/s, max=128.00 imgs/s, mean=96.00 imgs/s, std=32.00 imgs/s.",
        "[INFO] Latency: min=3.14 ms, max=3.87 ms, mean=3.50 ms.",
    ] == lines[-3:]
    assert float(re.search(r"max=([\d.]+)", "\n".join(lines)).group(1)) == 128
    assert "the first 2 host calls" == printer.dropped


def test_the_latency_of_resident_data_is_not_known(capsys):
    printer = inference(Log(None), data="synthetic", plan=Plan(replicas=3))
    printer.step(a_block(1000, batches=8, latencies_ms=(3.1,)), 128)
    printer.end({"settings": {"output_type": "float32"}, "spec": {"backend": "onnxruntime"}})
    lines = said(capsys)
    assert "[INFO] Throughput: 128.0 imgs/sec; Latency range: N/A" == lines[0]
    assert "data_type=float32, num_ipus=3, of resnet50: min=128.00 imgs/s" in lines[2]
    assert "[INFO] Latency: N/A" == lines[3]


def test_nothing_is_said_of_calls_that_were_not_made(capsys):
    inference(Log(None)).end(DOCUMENT)
    assert [] == said(capsys)


def test_validation_prints_the_seeds_line(capsys):
    printer = validation(Log(None), point=1600)
    printer.scored(71234, 100000)
    printer.step(Block(calls=2, batches=20, samples_ns=(21_315 * MS,)), 49998)
    (line,) = said(capsys)
    assert line == (
        "Validation top-1 accuracy [None] (iteration:   1600, epoch:   0.00, "
        "img/sec: 2345.67, time: 21.315000): 71.234%"
    )


def test_validation_shows_the_latency_where_it_is_asked_for(capsys):
    printer = validation(Log(None), latency=True)
    printer.step(Block(calls=2, batches=20, samples_ns=(100 * MS,)), 320)
    printer.step(a_block(100, latencies_ms=(4.0, 6.0)), 320)
    first, second = said(capsys)
    assert first.endswith("time: 0.100000, latency (ms): 5.000): 0.000%")
    assert second.endswith("latency (ms): 5.000): 0.000%")


def test_the_first_validation_is_left_out(capsys):
    printer = validation(Log(None))
    for seconds in (4, 2, 1):
        printer.step(a_block(seconds * 1000), 100)
    printer.end({})
    assert said(capsys)[-1] == (
        "Throughput without the first validation: min=50.00 img/sec, max=100.00 img/sec, mean=75.00 img/sec, "
        "std=25.00 img/sec."
    )


def test_what_is_left_without_the_first():
    assert [3] == counted([1, 2, 3], 2)
    assert [1] == counted([1], 2)
    assert [] == counted([], 2)
    assert "the first host call" == dropped_words(2, 2, "host call")
    assert "nothing: one host call is all" == dropped_words(1, 2, "host call")


def test_a_log_keeps_options_lines_and_rows(tmp_path, capsys):
    log = Log(tmp_path / "new" / "run")
    log.options("app.json", {"batch_size": 3, "image_size": (2, 2), "folder": Path("x")})
    printer = validation(log, name="ckpt-7", point=7)
    printer.open()
    for _ in range(2):
        printer.step(a_block(1000), 100)
    folder = log.folder
    assert {"batch_size": 3, "image_size": [2, 2], "folder": "x"} == json.loads((folder / "app.json").read_text())
    assert (folder / "log.txt").read_text() == capsys.readouterr().out
    rows = list(csv.DictReader((folder / "validation.csv").open()))
    assert 2 == len(rows)
    assert {"name": "ckpt-7", "iteration": "7", "val_size": "100", "img_per_sec": "100.0"}.items() <= rows[0].items()


def test_a_log_that_cannot_be_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        Log(tmp_path / "file" / "below")


def test_runs_are_told_apart():
    assert 3 == len(ending())
    assert len({ending() for _ in range(50)}) > 1


VALUES = {"model": "resnet", "no_stochastic_rounding": False, "name_suffix": None, "no_logs": False, "logs_path": None}


@pytest.mark.parametrize(
    ("values", "changes", "expected"),
    [
        ({}, {}, "RN50_bs16_BN_32.32_v"),
        ({"name_suffix": "penguin"}, {"plan": Plan(replicas=2)}, "RN50_bs16x2r_BN_32.32_penguin_v"),
        ({"no_stochastic_rounding": True}, {"params": {"norm_type": "none"}}, "RN50_bs16_noBN_32.32_noSR_v"),
        ({"model": "resnext"}, {"workload": "resnext101-32x4d"}, "RNX101_bs16_BN_32.32_v"),
        (
            {"model": "efficientnet"},
            {"workload": "efficientnet-b4", "params": {"norm_type": "group", "norm_num_groups": 4}},
            "EfficientNet-B4_bs16_GN4_32.32_v",
        ),
    ],
)
def test_names_of_runs(values, changes, expected):
    assert run_name(VALUES | values, a_spec(**changes)).startswith(expected)


def test_folders_of_runs():
    assert run_folder(VALUES | {"no_logs": True}, a_spec()) is None
    assert Path("here") == run_folder(VALUES | {"logs_path": "here"}, a_spec())
    assert Path("logs/walrus") == run_folder(VALUES | {"log_dir": "logs/walrus"}, a_spec()).parent


HOST = {
    "data": "imagenet",
    "imagenet_data_path": None,
    "dataloader_worker": 3,
    "disable_async_loading": False,
    "normalization_location": "host",
    "eight_bit_io": False,
    "dataloader_rebatch_size": None,
    "webdataset_memory_cache_ratio": 0.0,
    "skip_bad": "off",
    "image_size": (8, 8),
    "batch_size": 4,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"data": "cifar10"},
        {"data": "generated"},
        {"imagenet_data_path": "there"},
        {"dataloader_worker": 1},
        {"disable_async_loading": True},
        {"normalization_location": "none"},
        {"eight_bit_io": True},
        {"dataloader_rebatch_size": 2},
        {"webdataset_memory_cache_ratio": 0.5},
        {"image_size": (9, 9)},
        {"batch_size": 5},
    ],
    ids=lambda each: next(iter(each)),
)
def test_every_option_of_the_host_benchmark_changes_what_is_read(changes):
    assert host_reading(HOST) != host_reading(HOST | changes)


def test_made_up_pictures_are_copied_or_stay():
    for data, same in (("synthetic", True), ("generated", True)):
        with host_reading(HOST | {"data": data}).batches() as (stream, pictures):
            first, second = next(stream), next(stream)
            assert (first is second) == same
            assert (4, 3, 8, 8) == first.shape and pictures == 1_281_167
    assert host_reading(HOST | {"data": "generated"}).copied
    assert not host_reading(HOST | {"data": "synthetic"}).copied


DATASET = {
    "dataset": "imagenet",
    "data": "generated",
    "batch_size": 4,
    "image_size": None,
    "eight_bit_io": False,
    "hostside_norm": False,
    "normalise_input": False,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ((224, 224), "float32", "none")),
        ({"eight_bit_io": True, "hostside_norm": True}, ((224, 224), "uint8", "none")),
        ({"hostside_norm": True}, ((224, 224), "float32", "mean")),
        ({"hostside_norm": True, "normalise_input": True, "image_size": 64}, ((64, 64), "float32", "full")),
        ({"dataset": "cifar-10"}, ((32, 32), "float32", "none")),
    ],
)
def test_the_input_pipeline_of_the_tensorflow_programs(changes, expected):
    wanted = dataset_reading(DATASET | changes).wanted
    assert expected == (wanted.size, wanted.dtype, wanted.normalise)


def test_several_batch_sizes_end_in_a_table_with_both_ways_of_averaging(capsys):
    one, two = inference(Log(None), batch_size=1), inference(Log(None), batch_size=4)
    for seconds in (10, 5, 1, 2):
        one.step(a_block(seconds * 1000), 16)
    rate = {"value": 10.667, "low": 8.0, "high": 16.0, "unit": "pictures/s"}
    one.end({**DOCUMENT, "status": "ok", "sustained": rate})
    two.end({**DOCUMENT, "status": "skipped", "reason": "too large"})
    _, head, first, second = table([one, two])
    assert "mean of rates" in head and "without the first 2 host calls" in head
    assert ["1", "12.00", "10.7", "pictures/s"] == first.split()[:4]
    assert ["4", "-", "skipped:", "too", "large"] == second.split()
