"""Host calls that go on, checkpoints and restoring, in a worker with a real runtime."""

import json
import math
from pathlib import Path

import pytest

from layermark.backends.base import backend
from layermark.data.making_cifar import SmallRecipe, make_small
from layermark.errors import UserError
from layermark.spec import Loading, Spec
from layermark.training import checkpoint
from layermark.training.mixing import Mixing
from layermark.training.update import Update
from layermark.worker.service import Service

NETWORK = {"workload": "resnet8-cifar", "mode": "train", "batch_size": 4, "threads": 1, "ring": 3}
RUNTIMES = [name for name in ("torch", "tensorflow", "jax") if backend(name).installed]
EXECUTIONS = {"torch": "eager", "tensorflow": "function", "jax": "jit"}
UPDATE = Update(optimiser="momentum", accumulation=2)
"""What has a state that must come back, too."""


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    return make_small(tmp_path_factory.mktemp("cifar"), SmallRecipe(train=40, test=20))


def spec_of(runtime, folder=None, **more):
    loaded = {}
    if folder is not None:
        loading = Loading(data_dir=str(folder), split="train", augment=True, shuffle=True, loader_workers=0)
        loaded = {"data": "real", "loading": loading, "mixing": Mixing(mixup_alpha=0.2)}
    return Spec(**{**NETWORK, "backend": runtime, "execution": EXECUTIONS[runtime], **loaded, **more})


@pytest.fixture
def service():
    made = Service()
    yield made
    made.close()


def trained(service, calls, first=0):
    for number in range(first, calls):
        found = service.train(updates=2, rate=0.01 * (number + 1))
    return found


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("data", ["made up", "loaded"])
def test_a_restored_run_equals_one_that_was_never_interrupted(service, runtime, data, cifar, tmp_path):
    service.prepare(spec_of(runtime, cifar if data == "loaded" else None, update=UPDATE).to_json())
    service.begin_training(micro_batches=2)
    begun = service.digest()
    trained(service, 1)
    path = service.save(str(tmp_path), update=2, epoch=0.2)["path"]
    last = trained(service, 3, first=1)
    whole = service.digest()
    assert begun != whole and last["loss"] > 0
    assert {"update": 2, "epoch": 0.2} == service.begin_training(micro_batches=2, marker=path)
    trained(service, 3, first=1)
    assert whole == service.digest()
    assert 4 == last["block"]["batches"] and 1 == len(last["block"]["samples_ns"])
    read = checkpoint.load(Path(path))
    assert EXECUTIONS[runtime] == read.execution and any(each.any() for each in read.optimiser.values())


def test_the_position_in_the_data_is_kept(service, cifar, tmp_path):
    service.prepare(spec_of("torch", cifar).to_json())
    service.begin_training(micro_batches=2)
    trained(service, 1)
    path = service.save(str(tmp_path), update=2, epoch=0.4)["path"]
    with open(path, encoding="utf-8") as file:
        assert {"pictures": 16, "samples": 40, "seed": 42} == json.load(file)["position"]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_weights_that_are_no_numbers_are_not_saved(service, runtime, tmp_path):
    """The loss of this call is finite: it was there before the update that broke the weights."""
    service.prepare(spec_of(runtime, update=Update(weight_decay=1e9)).to_json())
    service.begin_training(micro_batches=1)
    assert math.isfinite(service.train(updates=1, rate=1e38)["loss"])
    assert service.save(str(tmp_path), update=1, epoch=0.1).keys() == {"not_finite"}
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_another_network_is_refused(service, tmp_path):
    service.prepare(spec_of("torch").to_json())
    service.begin_training(micro_batches=1)
    path = service.save(str(tmp_path), update=0, epoch=0.0)["path"]
    service.prepare(spec_of("torch", workload="resnet20-cifar").to_json())
    with pytest.raises(UserError, match="ckpt-0 is that of another network"):
        service.begin_training(micro_batches=1, marker=path)


def test_pace_leaves_the_run_alone(service):
    service.prepare(spec_of("torch").to_json())
    service.begin_training(micro_batches=2)
    begun = service.digest()
    assert 0 < service.seconds_per_batch(micro_batches=2)["seconds"] < 60
    service.begin_training(micro_batches=2)
    assert begun == service.digest()


def test_checkpoints_are_validated(service, cifar, tmp_path):
    service.prepare(spec_of("torch").to_json())
    service.begin_training(micro_batches=1)
    path = service.save(str(tmp_path), update=0, epoch=0.0)["path"]
    loading = Loading(data_dir=str(cifar), loader_workers=0)
    service.prepare(spec_of("torch", mode="infer", data="real", loading=loading).to_json())
    found = service.validate(path, batches=5)
    assert 0 <= found["right"] <= 20 and found["seconds"] > 0
    assert 1 <= service.loader_rate(seconds=0.01)["batches"]


def test_data_that_vanish_are_one_line(service, tmp_path):
    folder = make_small(tmp_path, SmallRecipe(train=40, test=20))
    service.prepare(spec_of("torch", folder).to_json())
    service.begin_training(micro_batches=1)
    for each in folder.iterdir():
        each.write_bytes(b"")
    with pytest.raises(UserError, match="data_batch"):
        trained(service, 10)
