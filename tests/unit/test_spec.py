import json
import subprocess
import sys

import pytest

from layermark.errors import UserError
from layermark.spec import COMPARED, PRECISIONS, Plan, Protocol, Spec
from layermark.training.update import Update

# Stored results are found by this name: a change of it needs a migration of the store.
KEY = "44203e84eb2fd8bb"

SPEC = Spec(workload="dense", backend="torch", batch_size=4, threads=2, params={"size": (3, 5), "bias": True})


def test_json_and_back() -> None:
    assert Spec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC


def test_params_are_sorted_frozen_and_hashable() -> None:
    twin = Spec(workload="dense", backend="torch", batch_size=4, threads=2, params={"bias": True, "size": [3, 5]})
    assert twin == SPEC
    assert {twin, SPEC} == {SPEC}
    with pytest.raises(TypeError):
        SPEC.params["bias"] = False  # type: ignore[index]


def test_key_is_the_same_in_another_process() -> None:
    code = f"from layermark.spec import Spec; print(Spec.from_json({SPEC.to_json()!r}).key)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == SPEC.key


def test_key_is_the_same_in_every_release() -> None:
    assert Spec(workload="dense", backend="torch", batch_size=1, threads=1).key == KEY


@pytest.mark.parametrize("name", COMPARED)
def test_group_ignores_what_is_compared(name: str) -> None:
    other = SPEC.replace(**{name: "other"})
    assert other.group == SPEC.group
    assert other.key != SPEC.key


def test_int8_is_never_in_a_group_with_floats() -> None:
    narrow = SPEC.replace(precision="int8")
    assert narrow.group not in {SPEC.replace(precision=each).group for each in PRECISIONS if each != "int8"}
    assert narrow.group == narrow.replace(backend="openvino", execution="throughput").group
    assert narrow.quantised and not SPEC.quantised


def test_group_depends_on_everything_else() -> None:
    others = [
        SPEC.replace(batch_size=5),
        SPEC.replace(mode="train"),
        SPEC.replace(params={"size": (5, 3), "bias": True}),
    ]
    assert len({SPEC.group, *(other.group for other in others)}) == 4


def test_plan_names_the_number_that_is_wrong() -> None:
    with pytest.raises(UserError, match="plan stages=0: expected at least 1"):
        Plan(stages=0)
    with pytest.raises(UserError, match="3 replicas cannot be shared by 2 instances; set replicas to a multiple of 2"):
        Plan(replicas=3, instances=2)


def test_protocol_is_plain() -> None:
    assert json.loads(json.dumps(Protocol(time_box=2.0).to_json()))["time_box"] == 2.0


def test_an_update_changes_the_key_and_survives_json() -> None:
    plain = SPEC.replace(mode="train")
    moved = plain.replace(update=Update(optimiser="lars", accumulation=4, lars_skip=("bias",)))
    assert moved.key != plain.key and moved.group != plain.group
    assert Spec.from_json(json.loads(json.dumps(moved.to_json()))) == moved
    assert Spec.of(workload="dense", backend="torch", mode="train", optimiser="momentum").update.optimiser == "momentum"


def test_a_record_without_an_update_is_read_as_plain_gradient_descent() -> None:
    old = {name: value for name, value in SPEC.to_json().items() if name != "update"}
    assert Spec.from_json(old).update == Update()


def test_updates_are_for_training() -> None:
    with pytest.raises(UserError, match=r"--optimiser, --weight-decay with --mode infer: .* use --mode train"):
        SPEC.replace(update=Update(optimiser="momentum", weight_decay=1e-4))
