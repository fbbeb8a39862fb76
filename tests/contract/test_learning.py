"""Networks that learn: classes that can be told apart are, unless labels or gradients are broken."""

import numpy as np
import pytest

from contract.covering import FULL
from contract.test_training_run import EXECUTIONS, RUNTIMES
from layermark.backends.base import backend
from layermark.data.making_cifar import SmallRecipe, make_small
from layermark.spec import Loading, Spec
from layermark.training.update import Update
from layermark.worker.service import Service

LEARNT = 90.0
CHANCE = 40.0
"""Above what a network that learns nothing reaches with ten classes."""
TESTED = 200
RECORD = 3073


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """Pictures whose classes can be told apart."""
    return make_small(tmp_path_factory.mktemp("cifar"), SmallRecipe(train=1600, test=TESTED))


@pytest.fixture(scope="module")
def mislabelled(tmp_path_factory):
    """The same to train with, but every label is drawn."""
    folder = make_small(tmp_path_factory.mktemp("cifar"), SmallRecipe(train=1600, test=TESTED))
    draw = np.random.default_rng(3)
    for path in folder.glob("data_batch_*.bin"):
        records = np.frombuffer(path.read_bytes(), "uint8").reshape(-1, RECORD).copy()
        records[:, 0] = draw.integers(0, 10, len(records))
        path.write_bytes(records.tobytes())
    return folder


def learnt(folder, tmp_path, runtime="torch", updates=60, rate=0.1, workload="resnet8-cifar", **more):
    """The share of right answers, in percent, after some updates of 16 pictures."""
    if not backend(runtime).installed:
        pytest.skip(f"{runtime} is not installed")
    facts = {"workload": workload, "batch_size": 16, "threads": 1, "seed": 5, "backend": runtime, **more}
    facts["execution"] = EXECUTIONS[runtime] if EXECUTIONS[runtime] in backend(runtime).executions else "auto"
    train = Loading(data_dir=str(folder), split="train", augment=True, shuffle=True, loader_workers=0)
    update, service = Update(optimiser="momentum"), Service()
    try:
        service.prepare(Spec(mode="train", data="real", loading=train, update=update, **facts).to_json())
        service.begin_training(micro_batches=1)
        for number in range(5):
            service.train(updates=updates // 5, rate=rate * (1 - number / 5))
        path = service.save(str(tmp_path), update=updates, epoch=1.0)["path"]
        test = Loading(data_dir=str(folder), loader_workers=0)
        service.prepare(Spec(mode="infer", data="real", loading=test, **facts).to_json())
        return 100 * service.validate(path, batches=TESTED // 16)["right"] / (TESTED // 16 * 16)
    finally:
        service.close()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_small_network_learns(runtime, cifar, tmp_path):
    assert learnt(cifar, tmp_path, runtime) > LEARNT


def test_labels_at_random_teach_nothing(mislabelled, tmp_path):
    assert learnt(mislabelled, tmp_path) < CHANCE


def test_gradients_of_zero_teach_nothing(cifar, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from layermark.backends.torch import updating

    honest = updating.Trainer._gradients

    def zero(trainer, loss_of, inputs):
        loss, right, gradients = honest(trainer, loss_of, inputs)
        return loss, right, [torch.zeros_like(each) for each in gradients]

    monkeypatch.setattr(updating.Trainer, "_gradients", zero)
    assert learnt(cifar, tmp_path) < CHANCE


@pytest.mark.skipif(not FULL, reason="minutes each; LAYERMARK_TEST_FULL=1 runs it")
@pytest.mark.parametrize(
    ("workload", "updates"), [("resnet20-cifar", 300), ("resnext29-cifar", 300), ("efficientnet-cifar", 600)]
)
def test_larger_networks_learn(workload, updates, cifar, tmp_path):
    assert learnt(cifar, tmp_path, workload=workload, updates=updates) > LEARNT


@pytest.mark.skipif(not FULL, reason="bfloat16 is slow on most CPUs; LAYERMARK_TEST_FULL=1 runs it")
def test_half_the_bits_follow_full_precision(cifar, tmp_path):
    full, half = (learnt(cifar, tmp_path, precision=each) for each in ("32.32", "bf16.32"))
    assert abs(full - half) < 5 and half > LEARNT
