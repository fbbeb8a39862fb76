"""Places that several tests share: a folder as the CNN programs expect it, and stores on both databases."""

import itertools

import numpy as np
import pytest

import postgres
from layermark.data.decode import encode
from layermark.data.making import Recipe, make
from layermark.spec import Spec
from layermark.workloads import checkpoint
from layermark.workloads.base import task
from needed import need


@pytest.fixture(scope="module")
def cnn_folder(tmp_path_factory):
    """A working directory with pictures in `images`, and checkpoints of small models."""
    made = tmp_path_factory.mktemp("cnns")
    (made / "images").mkdir()
    for number in range(5):
        picture = np.random.default_rng(number).integers(0, 256, (40, 50, 3), dtype="uint8")
        (made / "images" / f"{number}.jpg").write_bytes(encode(picture, 90))
    for convention in ("pytorch", "tensorflow"):
        graph = task(Spec(workload="resnet8-cifar", backend="null", batch_size=1, params={"convention": convention}))
        arrays = {name.replace("/", "."): np.zeros(each.shape) for name, each in graph.graph.parameters.items()}
        checkpoint.write(made / f"{convention}-7.safetensors", arrays.items())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        yield made


@pytest.fixture
def plain_cpu(monkeypatch):
    """A machine without GPUs whose CPU has no 16-bit floats, whatever this one is."""
    monkeypatch.setattr("layermark.devices.cpu.native_half", lambda: False)
    monkeypatch.setattr("layermark.seeds.device.gpus", list)


@pytest.fixture(scope="session")
def train_set(tmp_path_factory):
    """A folder above an ImageNet-shaped training set of a few small pictures."""
    above = tmp_path_factory.mktemp("datasets")
    picture = np.random.default_rng(7).integers(0, 256, (40, 50, 3), dtype="uint8")
    make(above / "imagenet-data", Recipe(format="tfrecord", count=6, split="train"), [picture])
    return above


@pytest.fixture(scope="session")
def postgresql_socket():
    """The folder of a server's socket; every test process has a server of its own."""
    need(postgres.program("initdb"), "a PostgreSQL server: apt-get install postgresql")
    with postgres.server() as folder:
        yield folder


SCHEMAS = itertools.count()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request, tmp_path):
    """An empty store on either database."""
    if request.param == "sqlite":
        return str(tmp_path / "folder" / "results.db")
    return postgresql_url(request.getfixturevalue("postgresql_socket"))


def postgresql_url(socket):
    """A schema that nobody has used."""
    return f"postgresql://{postgres.USER}@/postgres?host={socket}&schema=test{next(SCHEMAS)}"
