"""What the training program prints before its first line: labels, options, variables."""

from datetime import datetime
from pathlib import Path

import pytest

from layermark.seeds.cnns.train_opening import graph_of, labels, opening, total_parameters, variable_lines

from .train_commands import MADE_UP, TINY, document, read

FOLDER = Path("logs/some_run")
STARTED = datetime(2026, 1, 2, 3, 4, 5)


def shown(request, folder=FOLDER):
    return labels(request, folder, "a-host", STARTED)


S10 = """\
ResNet-50
 Batch Norm
  Decay: 0.97
Training
 Batch Size: 16384
  Pipelined over 4 stages
  Gradients accumulated over 1024 fwds/bwds passes
 Base Learning Rate: 2**-11
 Weight Decay: 0.0001
 Loss Scaling: 128
 Epochs: 1
SGD with Momentum
 Momentum: 0.9
Stepped LR schedule
 Warmup: 5 epochs
 Drops at 0.3, 0.6, 0.8, 0.9
 Decay factor 0.1
No Validation
ImageNet
 Pipeline Num Parallel: 32
Using Infeeds
 Max Batches Per Step: 1000
Device
 Precision: 16.32
Host: a-host
 Started: 2026-01-02 03:04:05
Logging
 Name: some_run
 Saving to logs/some_run"""
S13 = """\
ResNeXt-101
 Group Norm
  32 groups
Training
 Batch Size: 768
  Pipelined over 2 stages
  Gradients accumulated over 16 fwds/bwds passes
  Training on 8 replicas
 Base Learning Rate: 2**-11
 Weight Decay: 0.0001
 Loss Scaling: 128
 Epochs: 2
SGD with Momentum
 Momentum: 0.9
Popdist
 Process count: 8
 Process index: 7
Cosine LR schedule
 Warmup: 5 epochs
No Validation
ImageNet
 Pipeline Num Parallel: 48
Using Infeeds
 Max Batches Per Step: 1000
Device
 Precision: 16.16
Host: a-host
 Started: 2026-01-02 03:04:05
Logging
 Name: some_run
 Saving to logs/some_run"""
S14 = """\
EfficientNet-B4
 Group Norm
  4 groups
Image Size: 380x380
Training
 Batch Size: 200
  Pipelined over 4 stages
  Gradients accumulated over 40 fwds/bwds passes
 Base Learning Rate: 2**-14
 Weight Decay: 1e-05
 Loss Scaling: 128
 Epochs: 2
RMSprop
 Momentum: 0.9
 Decay: 0.987793
 Epsilon: 0.001
Exponential LR schedule
 Warmup: 5 epochs
 Decay Rate: 0.97
No Validation
ImageNet
 Pipeline Num Parallel: 48
Using Infeeds
 Max Batches Per Step: 1000
Device
 Precision: 16.32
Host: a-host
 Started: 2026-01-02 03:04:05
Logging
 Name: some_run
 Saving to logs/some_run"""
SHARED = {"S10": S10, "S13": S13, "S14": S14, "S16": S14}


@pytest.mark.parametrize("name", SHARED)
def test_labels_of_the_documents_stand_in_their_order(train_set, name):
    assert shown(document(name, train_set)) == SHARED[name].splitlines()


@pytest.mark.parametrize(
    ("one", "other", "changes"),
    [
        (
            "S10",
            "S11",
            {
                "  Gradients accumulated over 256 fwds/bwds passes",
                "  Training on 4 replicas",
                "Popdist",
                " Process count: 4",
                " Process index: 1",
            },
        ),
        ("S13", "S12", {"  Gradients accumulated over 64 fwds/bwds passes", "  Training on 2 replicas"}),
        (
            "S14",
            "S15",
            {
                " Batch Size: 800",
                "  Training on 4 replicas",
                " Epochs: 1",
                " Decay: 0.951172",
                "Popdist",
                " Process count: 4",
                " Process index: 0",
            },
        ),
    ],
)
def test_the_documents_pairs_differ_in_what_their_commands_change(train_set, one, other, changes):
    assert set(shown(document(other, train_set))) - set(shown(document(one, train_set))) == changes


def test_labels_of_a_plain_run():
    lines = shown(read(f"{TINY} --iterations 10 --batch-size 4"))
    assert lines[:9] == [
        "ResNet-8",
        " Batch Norm",
        "  Decay: 0.97",
        "Training",
        " Batch Size: 4",
        " Training Shards: 1",
        " Base Learning Rate: 2**-6",
        " Weight Decay: 1e-06",
        " Loss Scaling: 128",
    ]
    assert lines[9:11] == [" Iterations: 10", "SGD"]
    assert lines[12:18] == [
        " No warmup",
        " Drops at 0.5, 0.75",
        " Decay factor 0.1",
        "Validation",
        " Batch Size: 4",
        "CIFAR-10",
    ]
    assert " Generated random Data" in lines


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--lr-schedule polynomial_decay_lr --abs-learning-rate 0.1", "Polynomial LR schedule"),
        ("--lr-schedule polynomial_decay_lr --abs-end-learning-rate 0.5", " End rate: 0.5"),
        ("--optimiser LARS --lars-epsilon 0.25", " Epsilon: 0.25"),
        ("--warmup-epochs 2", " Warmup: 2 epochs"),
        ("--warmup-epochs 0", " No warmup"),
        ("--replicas 3", "  Training on 3 replicas"),
        ("--gradient-accumulation-count 5", "  Gradients accumulated over 5 fwds/bwds passes"),
    ],
)
def test_labels_follow_the_options(argv, expected):
    assert expected in shown(read(f"{TINY} {argv}"))


def test_scripts_cut_the_folder_out_of_its_line():
    last = shown(read(TINY))[-1]
    assert last[11:] == str(FOLDER)


def test_nothing_is_said_of_a_folder_where_none_is_written():
    assert shown(read(f"{TINY} --no-logs"), folder=None)[-1].startswith(" Name: RN8_bs32_BN_16.16")


@pytest.mark.parametrize(
    ("argv", "count"),
    [
        ("--model resnet --model-size 50 --batch-norm", 25_610_152),
        ("--model resnet --model-size 50", 25_557_032),
        ("--model resnet --model-size 18", 11_693_736),
        ("--model resnet --model-size 34 --batch-norm", 21_819_048),
        ("--model resnext --model-size 14", 9_411_880),
        ("--model resnext --model-size 50 --batch-norm", 25_097_128),
        ("--model resnext --model-size 101", 44_177_704),
        ("--model efficientnet", 5_288_548),
        ("--model efficientnet --model-size 1", 7_794_184),
        ("--model efficientnet --batch-norm", 5_330_564),
        ("--model efficientnet --group-dim 16 --expand-ratio 4", 5_913_796),
        ("--model efficientnet --model-size 4", 19_341_616),
        ("--model efficientnet --model-size 4 --group-dim 16 --expand-ratio 4", 19_328_168),
    ],
)
def test_parameters_are_counted_as_the_original_program_does(argv, count):
    request = read(f"{argv} {MADE_UP}")
    lines = variable_lines(graph_of(request))
    assert lines[0] == "Trainable Variables:"
    assert lines[-1] == f"Total Parameters:{count}"
    assert len(lines) == len(graph_of(request).parameters) + 2


@pytest.mark.parametrize(
    ("name", "count"), [("S10", 25_610_152), ("S12", 44_177_704), ("S14", 19_328_168), ("S14 corrected", 19_341_616)]
)
def test_parameters_of_the_documents(train_set, name, count):
    assert total_parameters(graph_of(document(name, train_set))) == count


def test_the_opening_has_its_parts_in_order():
    request = read(TINY)
    lines = opening(request, "python3 train.py --x", FOLDER, "a-host", STARTED)
    marks = ("Command line: python3 train.py --x", "ResNet-8", " Saving to logs/some_run", "Options:")
    places = [lines.index(each) for each in (*marks, "Trainable Variables:")]
    assert places == sorted(places)
    assert " loss_scaling: 128" in lines
    assert " lars_skip_list: beta gamma bias" in lines
    assert lines[-1].startswith("Total Parameters:")
