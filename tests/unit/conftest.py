"""A folder as the CNN programs expect it."""

import numpy as np
import pytest

from layermark.data.decode import encode
from layermark.spec import Spec
from layermark.workloads import checkpoint
from layermark.workloads.base import task


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
