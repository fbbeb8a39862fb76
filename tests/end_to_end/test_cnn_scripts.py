"""The CNN programs of the seeds, run as they are typed (with fewer iterations, and smaller pictures)."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import CommandLine, Finished
from layermark.backends.base import backend
from layermark.devices import cpu
from needed import FULL

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
CALL = re.compile(r"^\[INFO\] Throughput: ([\d.]+) imgs/sec; Latency range: (N/A|[\d.]+\.\.[\d.]+ ms)$", re.M)
SUMMARY = re.compile(r"^\[INFO\] Throughput at (.*): min=[\d.]+ imgs/s, max=([\d.]+) imgs/s, mean=", re.M)
VALIDATION = re.compile(r"^Validation top-1 accuracy \[None\] \(.* img/sec: ([\d.]+), time: [\d.]+\): ([\d.]+)%$", re.M)
TINY = ("--image-size", "64")
NULL = ("--backend", "null")


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    """A command line whose store, cache and pictures all tests of this file share."""
    made = CommandLine(tmp_path_factory.mktemp("cnns"))
    script = BENCHMARKS / "pytorch_cnns" / "get_images.sh"
    offline = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    environment = {**made.environment, **offline, "PYTHON": sys.executable}
    subprocess.run([script], cwd=made.folder, env=environment, check=True, capture_output=True)
    return made


@pytest.fixture
def typed(line):
    """Runs `python3 script.py ...` where the pictures are."""

    def start(name, *arguments, longest_s=240, **environment):
        command = [sys.executable, str(BENCHMARKS / f"{name}.py"), *map(str, arguments)]
        done = subprocess.run(
            command,
            cwd=line.folder,
            env={**line.environment, **environment},
            capture_output=True,
            text=True,
            timeout=longest_s,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    return start


def inferred(typed, arguments, *more, **environment):
    done = typed("pytorch_cnns/run_benchmark", *arguments.split(), *more, **environment)
    assert 0 == done.status, done.stdout + done.stderr
    assert all(each.startswith("[INFO]") for each in done.stdout.splitlines())
    assert "ERROR" not in done.stdout
    assert re.search(r"verified +yes", done.stdout)
    setting, highest = SUMMARY.search(done.stdout).groups()
    assert float(highest) > 0
    assert float(re.search(r"max=([\d.]+)", done.stdout).group(1)) == float(highest)
    return done, setting, CALL.findall(done.stdout)


def last_document(line):
    return max(line.kept(), key=lambda document: document["session"])


def test_real_pictures(typed, line):
    arguments = "--data real --replicas 1 --batch-size 1 --model resnet18 --device-iteration 1"
    done, setting, calls = inferred(typed, arguments, "--iterations", 5, "--execution", "eager", *TINY)
    assert "bs=1, data_mode=real, data_type=torch.float32, num_ipus=1, of resnet18" == setting.replace(
        "float16", "float32"
    )
    assert 5 == len(calls) and "N/A" not in dict(calls).values()
    assert "dropped   the first 2 host calls" in done.stdout
    folder = line.folder / re.search(r"Logging to (\S+)", done.stdout).group(1)
    assert re.fullmatch(r"resnet18_bs1_16\.16fp_r1_di1_\w{3}", folder.name)
    assert 5 == json.loads((folder / "app.json").read_text())["iterations"]
    assert (folder / "log.txt").read_text() == done.stdout


@pytest.mark.skipif(not FULL, reason="emulates 16-bit floats; LAYERMARK_TEST_FULL=1 runs it")
def test_resident_half_precision_without_norms(typed):
    arguments = "--data synthetic --replicas 1 --batch-size 16 --model resnet18 --normlayer none --emulate-half"
    more = ("--device-iteration", 2, "--iterations", 3, "--execution", "eager", "--image-size", 16)
    done, setting, calls = inferred(typed, arguments, *more)
    assert "bs=16, data_mode=synthetic, data_type=torch.float16, num_ipus=1, of resnet18" == setting
    assert ["N/A"] * 3 == [latency for _, latency in calls]
    assert "[INFO] Latency: N/A" in done.stdout.splitlines()
    assert "computing in fp32" not in done.stdout


@pytest.mark.skipif(not FULL, reason="emulates 16-bit floats; LAYERMARK_TEST_FULL=1 runs it")
def test_photographs_in_half_precision_are_proven(typed):
    arguments = "--data real --replicas 1 --batch-size 11 --model efficientnet-b0 --normlayer batch --emulate-half"
    _, _, calls = inferred(typed, arguments, "--device-iteration", 2, "--iterations", 3, "--execution", "eager", *TINY)
    assert 3 == len(calls)


def test_a_named_set_with_generated_data_has_latencies(typed, line):
    arguments = "--config resnet50-mk2 --data generated --batch-size 2 --num-io-tiles 64 --execution eager"
    _, _, calls = inferred(typed, arguments, "--device-iteration", 2, "--iterations", 4, *TINY)
    assert 4 == len(calls) and "N/A" not in dict(calls).values()
    document = last_document(line)
    assert [2, 2] == [each["batches"] for each in document["samples"]]
    used = "16.16" if cpu.native_half() else "32.32"
    assert ("8-bit", used) == (document["spec"]["params"]["pictures"], document["spec"]["precision"])
    assert "16.16" == document["settings"]["seed"]["asked"]


@pytest.mark.parametrize(
    "arguments",
    [
        "--data real --replicas 1 --batch-size 24 --model resnet18 --normlayer batch --precision half",
        "--data real --replicas 2 --batch-size 2 --model mobilenet-v3-small --normlayer group --groupnorm-group-num 8",
        "--config efficientnet-b0-g16-gn-mk2 --data generated --batch-size 1 --input-image-padding",
    ],
)
def test_variants(typed, arguments):
    _, _, calls = inferred(typed, arguments, "--device-iteration", 2, "--iterations", 3, *TINY, *NULL)
    assert 3 == len(calls) and "N/A" not in dict(calls).values()


def test_no_picture_is_loaded_ahead_where_the_environment_says_so(typed, line):
    arguments = "--data real --batch-size 2 --model resnet18 --iterations 3"
    options = json.dumps({"exchange.enablePrefetch": "false"})
    done, _, _ = inferred(typed, arguments, *TINY, *NULL, POPLAR_ENGINE_OPTIONS=options)
    assert "pictures are loaded between batches" in done.stdout
    assert 0 == last_document(line)["spec"]["loading"]["loader_workers"]


def test_a_profile_goes_into_the_log_folder(typed, line):
    arguments = "--data synthetic --model resnet18 --profile --execution eager"
    options = json.dumps({"autoReport.directory": "reports"})
    done = typed("pytorch_cnns/run_benchmark", *arguments.split(), *TINY, POPLAR_ENGINE_OPTIONS=options)
    assert 0 == done.status, done.stdout + done.stderr
    assert {"app.json", "log.txt", "resnet18.trace.json"} <= {each.name for each in (line.folder / "reports").iterdir()}


def test_the_environment_asks_for_a_profile(typed, line):
    arguments = "--data synthetic --model resnet18 --iterations 3 --execution eager"
    options = json.dumps({"autoReport.all": "true", "autoReport.directory": "every"})
    _, setting, calls = inferred(typed, arguments, *TINY, POPLAR_ENGINE_OPTIONS=options)
    assert 3 == len(calls) and "num_ipus=1" in setting
    assert (line.folder / "every" / "resnet18.profile.json").is_file()


@pytest.mark.skipif(not FULL, reason="two stages more; LAYERMARK_TEST_FULL=1 runs it")
def test_a_pipeline_without_a_profile_is_measured_all_the_same(typed, line):
    arguments = "--data synthetic --model resnet18 --iterations 3 --pipeline-splits layer3/0 --execution eager"
    options = json.dumps({"autoReport.all": "true", "autoReport.directory": "every"})
    done, setting, calls = inferred(typed, arguments, *TINY, POPLAR_ENGINE_OPTIONS=options)
    assert 3 == len(calls) and "num_ipus=2" in setting
    assert "no profile: ranks that work together" in done.stdout


PIPELINED = {
    "--data synthetic --model resnet50 --batch-size 2 --device-iterations 8 --pipeline-splits layer3/2": 2,
    "--data real --model resnet50 --batch-size 2 --device-iterations 8 --pipeline-splits layer3/2": 2,
    "--data synthetic --model resnext101 --pipeline-splits layer3/6 layer3/20 layer4": 4,
}


@pytest.mark.skipif(not os.environ.get("LAYERMARK_TEST_LARGE"), reason="large: set LAYERMARK_TEST_LARGE=1")
@pytest.mark.timeout(1200)
@pytest.mark.alone
@pytest.mark.parametrize(("arguments", "stages"), PIPELINED.items(), ids=PIPELINED)
def test_the_pipelined_runs_of_the_seeds_own_tests(typed, line, arguments, stages):
    _, setting, calls = inferred(typed, arguments, longest_s=1000, LAYERMARK_BUDGET="3m")
    assert calls and f"num_ipus={stages}" in setting
    assert stages == len(last_document(line)["pipeline"]["stages"])


def validated(typed, arguments, *more):
    done = typed("tensorflow_cnns/validation", *arguments.split(), *more)
    assert 0 == done.status, done.stdout + done.stderr
    assert re.search(r"verified +yes", done.stdout)
    return done, VALIDATION.findall(done.stdout)


VALIDATIONS = [
    "--model resnet --model-size 50 --dataset imagenet --batch-size 1 --synthetic-data --repeat 10 --batch-norm "
    "--enable-half-partials",
    "--model efficientnet --model-size 0 --dataset imagenet --precision 16.16 --batch-size 8 --generated-data "
    "--repeat 10 --batch-norm --enable-half-partials --eight-bit-io",
]


@pytest.mark.parametrize("arguments", VALIDATIONS, ids=["S18", "S23"])
def test_the_seeds_validations_on_an_imaginary_machine(typed, arguments):
    done, lines = validated(typed, arguments, *TINY, *NULL)
    assert 10 == len(lines) and all(float(rate) > 0 for rate, _ in lines)
    assert "the weights are random" in done.stdout
    assert "Throughput without the first validation: min=" in done.stdout


def test_several_batch_sizes_end_in_a_table(typed):
    more = ("--iterations", 3, *TINY, *NULL)
    done = typed(
        "pytorch_cnns/run_benchmark", *["--data", "synthetic", "--model", "resnet18", "--batch-size", "1,2"], *more
    )
    assert 0 == done.status, done.stdout + done.stderr
    rows = done.stdout.splitlines()[-3:]
    assert "mean of rates" in rows[0]
    assert ["1", "2"] == [row.split()[1] for row in rows[1:]]
    assert all(float(row.split()[2]) > 0 and "pictures/s" in row for row in rows[1:])


@pytest.mark.skipif(not backend("torch").installed, reason="needs torch")
def test_a_profile_of_a_validation_is_asked_for_by_its_option(typed, line):
    options = json.dumps({"autoReport.directory": "validated"})
    arguments = "--dataset cifar-10 --model-size 8 --synthetic-data --batch-size 100 --repeat 2 --backend torch"
    more = ("--execution", "eager", "--gc-profile")
    done = typed("tensorflow_cnns/validation", *arguments.split(), *more, POPLAR_ENGINE_OPTIONS=options)
    assert 0 == done.status, done.stdout + done.stderr
    found = {each.name.partition(".")[2] for each in (line.folder / "validated").glob("resnet8*")}
    assert {"trace.json", "profile.txt", "profile.json"} <= found


@pytest.mark.skipif(not backend("tensorflow").installed, reason="needs TensorFlow")
def test_validation_runs_on_tensorflow_by_default(typed):
    arguments = "--dataset cifar-10 --model-size 8 --synthetic-data --batch-size 1000 --repeat 2 --execution function"
    done, lines = validated(typed, arguments)
    assert ["0.000", "0.000"] == [share for _, share in lines]
    assert "10000 pictures per validation: 1 host calls of 10 batches" in done.stdout
    assert "Summary (tensorflow function" in done.stdout


def test_validation_of_a_data_set_counts_right_answers(typed, line):
    made = line("data", "imagenet", line.folder / "set" / "imagenet-data", "--count", 8, "--format", "tfrecord")
    assert 0 == made.status
    arguments = "--model resnet --model-size 18 --batch-size 2 --repeat 3 --normalise-input --backend torch"
    done, lines = validated(typed, arguments, "--data-dir", line.folder / "set", "--execution", "eager", *TINY)
    assert 3 == len(lines)
    assert "8 pictures per validation: 1 host calls of 4 batches" in done.stdout
    assert {float(share) for _, share in lines} <= {100 * right / 8 for right in range(9)}
    folder = line.folder / re.search(r"Saving to (\S+)", done.stdout).group(1)
    assert {"arguments.json", "log.txt", "validation.csv"} == {each.name for each in folder.iterdir()}
    assert 4 == len((folder / "validation.csv").read_text().splitlines())


def test_compile_only_times_nothing(typed):
    arguments = "--dataset imagenet --synthetic-data --compile-only --no-logs --backend null"
    done = typed("tensorflow_cnns/validation", *arguments.split(), *TINY)
    assert 0 == done.status, done.stderr
    assert "Compiled in " in done.stdout and "Validation" not in done.stdout


def test_the_input_pipelines_alone(typed):
    done = typed("pytorch_cnns/host_benchmark", "--data", "real", "--batch-size", 4, "--dataloader-worker", 2, *TINY)
    assert 0 == done.status, done.stderr
    assert 2 == len(re.findall(r"^Throughput: [\d.]+ img/sec$", done.stdout, re.M))
    arguments = "--dataset-benchmark --dataset imagenet --batch-size 2 --epochs 2 --data-dir images"
    done = typed("tensorflow_cnns/validation", *arguments.split(), *TINY, "--budget", "5s")
    assert 0 == done.status, done.stderr
    assert re.search(r"^Mean throughput over [12] epochs: [\d.]+ imgs/sec$", done.stdout, re.M)


@pytest.mark.parametrize("name", ["pytorch_cnns/run_benchmark", "pytorch_cnns/host_benchmark"])
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(typed, name, flag):
    done = typed(name, flag)
    assert 0 == done.status and done.stdout.startswith(f"usage: {Path(name).name}.py")


def test_the_help_of_validation_depends_on_the_model(typed):
    done = typed("tensorflow_cnns/validation", "--model", "efficientnet", "--help")
    assert 0 == done.status and done.stdout.startswith("usage: validation.py")
    assert "\nEfficientNet:\n" in done.stdout and "--top-width" in done.stdout
    assert "--top-width" not in typed("tensorflow_cnns/validation", "--help").stdout


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("pytorch_cnns/run_benchmark", "--model resnet51", "unknown model 'resnet51'; did you mean resnet50"),
        ("pytorch_cnns/run_benchmark", "--data real --data-dir nowhere", "resnet18: nowhere: no such folder"),
        ("pytorch_cnns/run_benchmark", "--config mk9", "unknown config in configs.yml 'mk9'"),
        ("pytorch_cnns/run_benchmark", "--data synthetic --pipeline-splits layer9", "unknown split 'layer9'"),
        ("pytorch_cnns/host_benchmark", "--imagenet-data-path nowhere", "nowhere: no such folder"),
        ("tensorflow_cnns/validation", "-h", "unrecognized arguments: -h"),
        ("tensorflow_cnns/validation", "--synthetic-data", "--synthetic-data needs --dataset"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(typed, line, name, arguments, message):
    before = set(os.listdir(line.folder / "logs")) if (line.folder / "logs").exists() else set()
    done = typed(name, *arguments.split())
    assert 2 == done.status
    assert done.stderr.startswith(f"{Path(name).name}.py: error: ")
    assert message in done.stderr and 1 == done.stderr.count("\n")
    assert before == (set(os.listdir(line.folder / "logs")) if (line.folder / "logs").exists() else set())
