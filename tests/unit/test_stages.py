"""The stages of a program's replicas, known before it is started, and other programs, which nobody judges."""

import os
from pathlib import Path

import pytest

from layermark import cli
from layermark.seeds.stages import name_of, stages_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TWO_STAGES = "--model resnet50 --data generated --pipeline-splits layer2/0"
SHARDED = "--model resnet --model-size 50 --dataset imagenet --generated-data --shards 2 --pipeline --pipeline-splits x"


@pytest.mark.parametrize(
    ("name", "argv", "stages"),
    [
        ("pytorch_cnns/run_benchmark", "--config resnet50-mk2 --data generated", 1),
        ("pytorch_cnns/run_benchmark", TWO_STAGES, 2),
        ("pytorch_cnns/host_benchmark", "--data generated", None),
        ("tensorflow_cnns/validation", SHARDED, 2),
        ("tensorflow_cnns/train", SHARDED, 2),
        ("tensorflow_cnns/weight_avg", "", None),
        ("tensorflow/dense", "--size 3", 1),
        ("pytorch_cnns/run_benchmark", "--no-such-option", None),
        ("tensorflow/dense", "--help", 1),
    ],
)
def test_stages_follow_from_the_words(name, argv, stages, capsys):
    assert stages == stages_of(BENCHMARKS / f"{name}.py", argv.split())
    assert "" == capsys.readouterr().out


OTHERS = ["", "import layermark.seeds\nmain('x')", "layermark.seeds (", "main('tensorflow/dense')"]


@pytest.mark.parametrize("text", OTHERS)
def test_other_programs_have_no_name(tmp_path, text):
    (tmp_path / "x.py").write_text(text)
    assert "" == name_of(tmp_path / "x.py")
    assert "" == name_of(tmp_path / "none.py")


@pytest.mark.parametrize(
    ("given", "program", "said"),
    [
        (2, "tensorflow/dense.py", "--ipus-per-replica 2: the program has 1 stage; set --ipus-per-replica 1"),
        (1, f"pytorch_cnns/run_benchmark.py {TWO_STAGES}", "the program has 2 stages; set --ipus-per-replica 2"),
        (3, f"tensorflow_cnns/train.py {SHARDED}", "--ipus-per-replica 3: the program has 2 stages"),
    ],
)
@pytest.mark.parametrize("options", ["python3", "python3 -u"])
def test_other_stages_than_the_programs_are_one_line_and_status_2(given, program, said, options, capsys, monkeypatch):
    monkeypatch.chdir(BENCHMARKS)
    argv = ["launch", "--launcher", "builtin", "--ipus-per-replica", str(given), *options.split(), *program.split()]
    assert 2 == cli.main(argv)
    captured = capsys.readouterr()
    assert ("", 1) == (captured.out, len(captured.err.splitlines())) and said in captured.err


TRAINED = "tensorflow_cnns/train.py --model-size 8 --dataset cifar-10 --generated-data --no-validation --backend null"
CUT = "--shards 2 --pipeline --gradient-accumulation-count 2 --pipeline-splits"


@pytest.mark.parametrize(
    ("given", "words", "said"),
    [
        (2, f"{CUT} b9/0/relu", "'b9/0/relu'"),
        (2, f"{CUT} b2/0/relu b3/0/relu", "2 names for 2 shards, expected 1"),
        (1, "--replicas 3", "--replicas 3: poprun gives each instance 2; leave --replicas out"),
        (1, "--no-such-option", "--no-such-option"),
    ],
)
def test_training_that_every_instance_would_refuse_is_one_line_and_status_2(given, words, said, capsys, monkeypatch):
    monkeypatch.chdir(BENCHMARKS)
    line = f"launch --launcher builtin --num-instances 2 --num-replicas 4 --ipus-per-replica {given} python3 {TRAINED}"
    assert 2 == cli.main([*line.split(), *words.split()])
    captured = capsys.readouterr()
    assert ("", 1) == (captured.out, len(captured.err.splitlines())) and said in captured.err


INFERRED = "pytorch_cnns/run_benchmark.py --model resnet18 --data generated --backend null"
VALIDATED = "tensorflow_cnns/validation.py --model resnet --model-size 8 --dataset cifar-10 --generated-data"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (f"{INFERRED} --no-such-option", "--no-such-option"),
        (f"{INFERRED} --available-memory-proportion 0.1 0.2 0.3", "3 values for 1 stages"),
        (f"{INFERRED} --model resnet51", "unknown model 'resnet51'"),
        (f"{VALIDATED} --no-such-option", "--no-such-option"),
        (f"{VALIDATED} --restore-path nowhere --backend null", "nowhere"),
        (f"{VALIDATED} --batch-size 9000 --backend null", "10000 pictures do not fill one batch of 18000"),
    ],
)
def test_inference_that_every_instance_would_refuse_is_one_line_and_status_2(program, said, capsys, monkeypatch):
    """A batch is that of all replicas: the words are read as an instance reads them."""
    monkeypatch.chdir(BENCHMARKS)
    before = dict(os.environ)
    line = f"launch --launcher builtin --num-instances 2 --num-replicas 2 python3 {program}"
    assert 2 == cli.main(line.split())
    captured = capsys.readouterr()
    assert ("", 1) == (captured.out, len(captured.err.splitlines())) and said in captured.err
    assert before == os.environ


@pytest.mark.parametrize("program", [INFERRED, f"{VALIDATED} --help", f"{VALIDATED} --dataset-benchmark"])
def test_inference_that_can_be_is_planned(program, capsys, monkeypatch):
    monkeypatch.chdir(BENCHMARKS)
    line = f"launch --launcher builtin --dry-run --num-instances 2 --num-replicas 2 python3 {program}"
    assert 0 == cli.main(line.split())
    assert "instances: 2, replicas in each: 1" in capsys.readouterr().out


@pytest.mark.parametrize("words", [f"{CUT} b2/0/relu", "--help"])
def test_training_that_can_be_is_planned(words, capsys, monkeypatch):
    monkeypatch.chdir(BENCHMARKS)
    line = f"launch --launcher builtin --dry-run --num-instances 2 --num-replicas 4 --ipus-per-replica 2 {TRAINED}"
    assert 0 == cli.main([*line.replace("tensor", "python3 tensor").split(), *words.split()])
    assert "instances: 2, replicas in each: 2" in capsys.readouterr().out
