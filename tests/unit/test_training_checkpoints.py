"""Checkpoints: what was saved comes back, and a writer that dies leaves the last good one intact."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from layermark import safetensors
from layermark.errors import UserError
from layermark.laws import random_generator
from layermark.training import averaging, checkpoint
from layermark.training.checkpoint import Checkpoint
from layermark.training.schedule import Cosine, LearningRate
from layermark.training.update import Update


def made(update, *, elements=100):
    rng = np.random.default_rng(update)
    return Checkpoint(
        update=update,
        epoch=update / 10,
        weights={"conv/weight": rng.standard_normal((2, elements // 2)).astype("float32"), "fc/bias": np.arange(3.0)},
        statistics={"bn/mean": rng.standard_normal(4).astype("float16")},
        optimiser={"conv/weight/momentum": rng.standard_normal(elements), "loss_scale": np.asarray(128.0)},
        random={"seed": 7, "state": rng.bit_generator.state},
        position={"epoch": 1, "record": 12345},
        execution="eager",
    )


def assert_equal(expected, actual):
    for name in ("update", "epoch", "random", "position", "execution"):
        assert getattr(expected, name) == getattr(actual, name), name
    ours, theirs = expected.arrays(), actual.arrays()
    assert ours.keys() == theirs.keys()
    for name, each in ours.items():
        assert each.dtype == theirs[name].dtype and np.array_equal(each, theirs[name]), name


def test_what_is_saved_comes_back(tmp_path):
    path = checkpoint.save(tmp_path / "ckpt", made(12))
    assert "ckpt-12.json" == path.name and path == checkpoint.latest(tmp_path / "ckpt")
    assert_equal(made(12), checkpoint.load(path))
    assert {"ckpt-12.json", "ckpt-12.safetensors"} == {each.name for each in path.parent.iterdir()}


def test_a_checkpoint_of_an_earlier_release_does_not_say_how_its_program_was_run(tmp_path):
    path = checkpoint.save(tmp_path, made(12))
    assert "eager" == checkpoint.execution_of(path)
    doc = json.loads(path.read_text())
    del doc["execution"]
    path.write_text(json.dumps(doc))
    assert "" == checkpoint.load(path).execution == checkpoint.execution_of(path)
    assert path == checkpoint.latest(tmp_path)


def test_a_generator_goes_on_where_it_was(tmp_path):
    rng = np.random.default_rng(12)
    rng.random(5)
    kept = Checkpoint(update=1, epoch=0.1, weights={}, random=rng.bit_generator.state)
    other = np.random.default_rng(0)
    other.bit_generator.state = checkpoint.load(checkpoint.save(tmp_path, kept)).random
    assert rng.random() == other.random()


def test_the_latest_is_the_highest_number(tmp_path):
    for update in (9, 100, 20):
        checkpoint.save(tmp_path, made(update))
    assert "ckpt-100" == checkpoint.latest(tmp_path).stem
    assert [(9, 0.9), (20, 2.0), (100, 10.0)] == [(each.update, each.epoch) for each in checkpoint.points(tmp_path)]


def tear_the_arrays(folder):
    data = folder / "ckpt-20.safetensors"
    data.write_bytes(data.read_bytes()[:-8])


def flip_a_bit(folder):
    data = folder / "ckpt-20.safetensors"
    raw = bytearray(data.read_bytes())
    raw[-1] ^= 1
    data.write_bytes(raw)


def lose_the_arrays(folder):
    (folder / "ckpt-20.safetensors").unlink()


def tear_the_json(folder):
    (folder / "ckpt-20.json").write_text((folder / "ckpt-20.json").read_text()[:50])


def empty_the_json(folder):
    (folder / "ckpt-20.json").write_text("[]")


@pytest.mark.parametrize("damage", [tear_the_arrays, flip_a_bit, lose_the_arrays, tear_the_json, empty_the_json])
def test_a_torn_checkpoint_is_passed_over(damage, tmp_path):
    checkpoint.save(tmp_path, made(10))
    torn = checkpoint.save(tmp_path, made(20))
    damage(tmp_path)
    assert not checkpoint.is_whole(torn) and "ckpt-10" == checkpoint.latest(tmp_path).stem
    assert [10] == [each.update for each in checkpoint.points(tmp_path)]
    with pytest.raises(UserError, match=r"checkpoint ckpt-20.*restore an earlier one"):
        checkpoint.load(torn)


def test_missing_checkpoints(tmp_path):
    with pytest.raises(UserError, match=r"no whole checkpoint in .*found none"):
        checkpoint.latest(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        checkpoint.latest(tmp_path / "none")
    with pytest.raises(UserError, match=r"checkpoint ckpt-3: no ckpt-3\.json"):
        checkpoint.load(tmp_path / "ckpt-3.json")
    (tmp_path / "ckpt-3.json").write_text("{}")
    with pytest.raises(UserError, match="found 1 torn ones"):
        checkpoint.latest(tmp_path)


def test_another_version_is_refused(tmp_path):
    path = checkpoint.save(tmp_path, made(1))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))
    with pytest.raises(UserError, match="has version 99; expected 1"):
        checkpoint.load(path)


def test_a_number_may_be_saved_again(tmp_path):
    checkpoint.save(tmp_path, made(5, elements=10))
    assert_equal(made(5), checkpoint.load(checkpoint.save(tmp_path, made(5))))


def test_a_full_disk_is_one_line_and_the_last_one_stays(tmp_path):
    checkpoint.save(tmp_path, made(10))
    # The device that is always full stands where the writer writes.
    (tmp_path / f"ckpt-20.safetensors.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(UserError) as caught:
        checkpoint.save(tmp_path, made(20))
    assert os.strerror(errno.ENOSPC) in str(caught.value) and "ckpt-10 is intact; free some space" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert_equal(made(10), checkpoint.load(checkpoint.latest(tmp_path)))
    assert {"ckpt-10.json", "ckpt-10.safetensors"} == {each.name for each in tmp_path.iterdir()}


def test_a_full_disk_while_averages_are_written(tmp_path):
    (tmp_path / f"weight_avg_N_2.safetensors.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(UserError, match="cannot save weight_avg_N_2"):
        checkpoint.write_weights(tmp_path / "weight_avg_N_2.safetensors", made(1).weights)
    assert [] == list(tmp_path.iterdir())


LIMITED = """
import resource, signal, sys
from pathlib import Path
from test_training_checkpoints import made
from layermark.errors import UserError
from layermark.training import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
checkpoint.save(Path(sys.argv[1]), made(1))
try:
    checkpoint.save(Path(sys.argv[1]), made(2, elements=1 << 16))
except UserError as error:
    print(error)
"""


def test_a_file_that_becomes_too_large_is_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], env=environment(), capture_output=True, text=True, check=True
    )
    assert f"cannot save ckpt-2 in {tmp_path}: {os.strerror(errno.EFBIG)}; ckpt-1 is intact" in done.stdout
    assert "ckpt-1" == checkpoint.latest(tmp_path).stem


def test_a_folder_that_cannot_be_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="see that it can be written to, or choose another --log-dir"):
        checkpoint.save(tmp_path / "file" / "ckpt", made(1))


WRITER = """
import sys
from pathlib import Path
from test_training_checkpoints import made
from layermark.training import checkpoint
print("ready", flush=True)
update = 0
while True:
    update += 1
    checkpoint.save(Path(sys.argv[1]), made(update, elements=40_000))
    print(update, flush=True)
"""


def environment():
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}


@pytest.mark.parametrize("seed", range(6))
def test_a_writer_that_is_killed_leaves_the_last_good_one(seed, tmp_path):
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as writer:
        for _ in range(3):  # ready, and two whole ones
            assert writer.stdout.readline()
        time.sleep(random.Random(seed).uniform(0, 0.1))
        writer.send_signal(signal.SIGKILL)
        said = [2, *(int(line) for line in writer.stdout.read().split())]
    assert -signal.SIGKILL == writer.returncode
    found = checkpoint.load(checkpoint.latest(tmp_path))
    # One that was announced is never lost; one more may have become whole before it could be announced.
    assert said[-1] <= found.update <= said[-1] + 1
    assert_equal(made(found.update, elements=40_000), found)
    # The next run writes on, and clears away what was left behind.
    checkpoint.save(tmp_path, made(found.update + 1))
    assert [] == list(tmp_path.glob("*.part")) and f"ckpt-{found.update + 1}" == checkpoint.latest(tmp_path).stem


@pytest.mark.parametrize("step", range(8))
def test_every_moment_of_writing_is_safe(step, tmp_path):
    """The writer dies at each of its steps in turn: before every flush, rename and removal."""
    checkpoint.save(tmp_path, made(1))
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(tmp_path), str(step)], env=environment(), capture_output=True, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    found = checkpoint.load(checkpoint.latest(tmp_path))
    assert_equal(made(found.update), found)
    assert found.update == 2 if done.returncode == 0 else found.update in (1, 2)


DYING = """
import os, signal, sys
from pathlib import Path
from test_training_checkpoints import made
from layermark.training import checkpoint
left = int(sys.argv[2])

def watch(event, arguments):
    global left
    # What changes the disk: opening to write, renaming, removing; and the flush of the folder.
    if event in ("os.rename", "os.remove") or (event == "open" and "ckpt" in str(arguments[0])):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
checkpoint.save(Path(sys.argv[1]), made(2))
"""


@pytest.mark.parametrize(
    "update",
    [
        Update(optimiser="momentum", weight_decay=1e-3, accumulation=2),
        Update(optimiser="rmsprop", loss_scaling=8.0),
        Update(optimiser="lars", weight_decay=1e-3),
        Update(dynamic_scaling=True, loss_scaling=4.0),
    ],
    ids=lambda update: update.optimiser,
)
def test_a_restored_run_equals_one_that_was_never_interrupted(update, tmp_path):
    """A small regression with dropout, whose masks are drawn anew for every micro-batch."""
    fixed = np.random.default_rng(0)
    x, y = fixed.standard_normal((16, 6)), fixed.standard_normal((16, 3))

    def train(weights, state, numbers):
        rate = LearningRate(peak=0.1, schedule=Cosine(), total=20, epochs=2, warmup_epochs=0.5)
        for number in numbers:
            gradients = []
            for k in range(update.micro_batches):
                mask = random_generator(1, "drop", number, k).random(x.shape) < 0.8
                error = (x * mask) @ weights["fc/weight"] - y
                slope = (x * mask).T @ error / len(x)
                gradients.append({"fc/weight": update.loss_scale(state) * slope})
            weights, state = update.apply(weights, gradients, state, rate.at(number), xp=np)
        return weights, state

    start = {"fc/weight": fixed.standard_normal((6, 3))}
    whole = train(start, update.state(start, xp=np), range(20))
    weights, state = train(start, update.state(start, xp=np), range(9))
    kept = Checkpoint(update=9, epoch=0.9, weights=weights, optimiser=state)
    found = checkpoint.load(checkpoint.save(tmp_path, kept))
    restored = train(found.weights, found.optimiser, range(found.update, 20))
    for ours, theirs in zip(whole, restored, strict=True):
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(each, theirs[name]) for name, each in ours.items())
    assert not np.array_equal(start["fc/weight"], whole[0]["fc/weight"])


def test_averages_of_a_folder(tmp_path):
    for update in range(0, 60, 10):
        checkpoint.save(tmp_path, made(update))
    points = checkpoint.points(tmp_path)
    taken = averaging.mean_points(points, 2)
    assert [20, 30, 40] == [each.update for each in taken]
    mean = averaging.mean(checkpoint.weights_of(points[each]) for each in taken)
    expected = np.mean([made(each).weights["conv/weight"] for each in (20, 30, 40)], axis=0)
    np.testing.assert_allclose(mean["conv/weight"], expected, rtol=1e-6, atol=1e-6)
    path = tmp_path / f"{averaging.mean_name(2)}.safetensors"
    checkpoint.write_weights(path, mean)
    assert {"conv/weight", "fc/bias", "bn/mean"} == set(safetensors.read(path))


def test_the_file_is_what_the_safetensors_package_writes(tmp_path):
    package = pytest.importorskip("safetensors.numpy", reason="another reader of the format is not installed")
    arrays = {"a": np.arange(6, dtype="int64").reshape(2, 3), "b": np.array([True, False]), "c": np.float16([0.5])}
    safetensors.write(tmp_path / "ours.safetensors", arrays.items())
    package.save_file(arrays, tmp_path / "theirs.safetensors")
    theirs, ours = package.load_file(tmp_path / "ours.safetensors"), safetensors.read(tmp_path / "theirs.safetensors")
    for name, each in arrays.items():
        for found in (ours[name], theirs[name]):
            assert each.dtype == found.dtype and np.array_equal(each, found)


def test_a_type_that_the_format_lacks_is_refused(tmp_path):
    with pytest.raises(UserError, match="bad has the type complex128"):
        safetensors.write(tmp_path / "x.safetensors", [("bad", np.zeros(1, complex))])
    assert [] == list(tmp_path.iterdir())
