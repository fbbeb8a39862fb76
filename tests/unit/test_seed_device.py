"""`--device-id` and `--select-ipu`: which GPUs there are, and which of them each replica gets."""

import pathlib

import pytest

from layermark.errors import UserError
from layermark.seeds import device as devices
from layermark.seeds.device import Device, device, gpus
from layermark.session.rank_group import RankGroup
from layermark.session.ranks import VISIBLE, own_device
from layermark.spec import Plan, Spec

from .crew import resources


@pytest.fixture
def four(monkeypatch, tmp_path):
    """A machine with four GPUs, as the kernel lists them."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "Path", lambda folder: tmp_path if folder == "/dev" else pathlib.Path(folder))
    monkeypatch.delenv(VISIBLE, raising=False)


def test_gpus_are_those_that_the_kernel_lists(four):
    assert ["0", "1", "2", "3"] == gpus()


@pytest.mark.parametrize(
    ("text", "found"), [("2,0", ["2", "0"]), ("GPU-5af, 1", ["GPU-5af", "1"]), ("", []), ("-1", [])]
)
def test_a_process_may_use_those_that_its_environment_names(four, monkeypatch, text, found):
    monkeypatch.setenv(VISIBLE, text)
    assert found == gpus()


def test_without_a_gpu_the_environment_names_none(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "Path", lambda folder: tmp_path)
    assert [] == gpus() and Device() == device("--device-id", "0", "-1")


def test_every_replica_has_a_device_from_the_index_on(four):
    assert Device("cuda", {VISIBLE: "1"}) == device("--device-id", "1", "-1")
    assert Device("cuda", {VISIBLE: "1,2,3"}) == device("--select-ipu", "1", "AUTO", replicas=3)
    assert Device() == device("--select-ipu", "auto", "AUTO", replicas=9)


def test_too_few_devices_are_refused_in_one_line(four):
    with pytest.raises(UserError, match=r"--device-id 2 with --replicas 3: .* there are 2; set --replicas 2"):
        device("--device-id", "2", "-1", replicas=3)
    with pytest.raises(UserError, match=r"expected -1 \(cpu\), or 0 to 3 \(cuda\)"):
        device("--device-id", "4", "-1")


def test_a_rank_sees_its_own_device_only():
    assert [{VISIBLE: "1"}, {VISIBLE: "3"}] == [own_device({VISIBLE: "1,3"}, rank) for rank in (0, 1)]
    assert {} == own_device({VISIBLE: "1"}, 0) == own_device({}, 0)


def test_ranks_are_hired_with_a_device_each():
    import dataclasses

    hired, spec = [], Spec(workload="dense", backend="null", batch_size=4, threads=2, params={"size": 8})
    shared = dataclasses.replace(resources(), variables={VISIBLE: "2,3"})
    hire = shared.crew.hire
    shared.crew.hire = lambda variables, **more: hired.append(variables[VISIBLE]) or hire(variables, **more)
    RankGroup(spec.replace(plan=Plan(replicas=2)), shared).hire()
    assert ["2", "3"] == hired
