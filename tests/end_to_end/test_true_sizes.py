"""What is planted is named and sized: a slow decoder, a slow copy, and a network that takes fifty milliseconds longer.

The plants note how long they really slept, so that a busy machine does not matter.
"""

import statistics

import pytest

from layermark.backends.base import backend

CONV = ("conv", "--channel-size", 3, "--input-height", 32, "--input-width", 32, "--filter-number", 4, "--batch-size", 1)
QUICK = ("--time-box", "1s", "--block", "400ms", "--min-steps", 2, "--batches-per-step", 2, "--threads", 1)
WITHIN = 0.1

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not backend("torch").installed, reason="the plants are in PyTorch programs"),
]


class Slept:
    """How long the plants slept."""

    def __init__(self, folder):
        self._folder = folder

    def __call__(self, what):
        """The usual length of a sleep in seconds."""
        return statistics.median(map(float, (self._folder / what).read_text().split()))


@pytest.fixture
def slept(layermark, tmp_path):
    folder = tmp_path / "slept"
    folder.mkdir()
    layermark.environment["LAYERMARK_TEST_SLEPT"] = str(folder)
    return Slept(folder)


def test_a_slow_decoder_a_slow_copy_and_a_slow_network_are_named_and_sized(layermark, pictures, slept):
    typed = ("--data-dir", pictures, "--source", "slow_pictures", "--loader-workers", 0, "--backend", "slow")
    done = layermark("data", "ladder", *CONV, *typed, *QUICK, "--json")
    assert done.status == 0, done.stderr
    (found,) = done.documents
    decode, copy, network = slept("decode"), slept("copy"), slept("network")
    batch_s = 1 / found["items_per_s"]["real"]
    assert found["lost"]["decode"] == pytest.approx(decode / batch_s, rel=WITHIN)
    assert found["lost"]["copy"] == pytest.approx(copy / batch_s, rel=WITHIN)
    assert found["network"] == pytest.approx(network / batch_s, rel=WITHIN)
    assert found["lost"]["read"] + found["lost"]["preprocess"] < WITHIN
    # Every batch of a step has a latency of its own.
    latency = {name: each["p50"] / 1e3 for name, each in found["latency_ms"].items()}
    assert latency["synthetic"] == pytest.approx(network, rel=WITHIN)
    assert latency["generated"] == pytest.approx(network + copy, rel=WITHIN)
    assert latency["real"] == pytest.approx(network + copy + decode, rel=WITHIN)
