"""Plans of ranks that work together: what options come to, what is refused, and what is derived from their events."""

import json
import math

import pytest

from layermark import pipelines
from layermark.axes import complete
from layermark.devices import cpu
from layermark.errors import Unsupported, UserError, WorkerFailed
from layermark.launch.ranks import from_tf_config
from layermark.planning import connected
from layermark.replicas import turns
from layermark.session import balance, ranks, run_session
from layermark.session.memory import most_micro_batches, needed_bytes
from layermark.session.ranks import rank_specs, refusal
from layermark.spec import Plan, Protocol, Spec
from layermark.stats.pipeline import Work, predicted_bubble
from layermark.store import open_store
from layermark.training.update import Update
from layermark.workloads.base import kept_bytes, task

SPEC = Spec(workload="resnet8-cifar", backend="torch", threads=4, batch_size=2)


def test_splits_make_stages_and_replicas_in_training_share_updates():
    spec = connected(
        SPEC.replace(mode="train", pipeline_splits="a", plan=Plan(replicas=2), update=Update(accumulation=2))
    )
    assert (2, 2, 4, 2) == (spec.plan.stages, spec.update.replicas, spec.ranks, spec.sharers)
    assert [1] * 4 == [each.threads for each in rank_specs(spec)]
    assert refusal(spec) is None and "no_pipelines" == refusal(spec.replace(backend="jax")).code
    assert "pipelines run on PyTorch" == str(refusal(spec.replace(backend="onnxruntime")))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plan": Plan(stages=3)}, "--stages 3 without --pipeline-splits"),
        ({"pipeline_splits": "auto"}, "add --stages N"),
        ({"pipeline_splits": "a", "plan": Plan(stages=3)}, "1 splits make 2 stages"),
        ({"pipeline_splits": "a,b", "mode": "train", "update": Update(accumulation=2)}, "set --accumulation 3 or more"),
        ({"pipeline_splits": "a", "pipeline_schedule": "ZBVZeroBubble"}, "cut the network into 4, 6, ... stages"),
        ({"pipeline_splits": "a,b,c", "pipeline_schedule": "LoopedBFS"}, "add --mode train, or use one of Interleaved"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(changes, said):
    with pytest.raises(UserError, match=said.replace(".", "\\.")):
        connected(SPEC.replace(**changes))


def test_stages_are_as_equal_as_can_be():
    pieces = [("", 1.0), ("b", 1.0), ("c", 4.0), ("d", 1.0), ("e", 1.0)]
    assert ("c", "d") == pipelines.balanced(pieces, 3)
    with pytest.raises(UserError, match="can be cut into 5 at most"):
        pipelines.balanced(pieces, 6)


@pytest.mark.parametrize(
    ("raised", "status"),
    [(Unsupported("torch is not installed"), "skipped"), (WorkerFailed("killed by signal SIGKILL"), "failed")],
)
def test_stages_that_cannot_be_timed_end_that_measurement_alone(monkeypatch, raised, status):
    asked = []

    def untimed(spec, *_):
        asked.append(spec)
        raise raised

    monkeypatch.setattr(balance, "_balanced", untimed)
    auto = complete(SPEC.replace(pipeline_splits="auto", plan=Plan(stages=2)))
    plain = complete(Spec(workload="dense", backend="null", batch_size=2, threads=1, params={"size": 8}))
    with open_store(":memory:") as store:
        documents = run_session([auto, plain], Protocol(block=0.02), store=store)
        assert [(status, str(raised)), ("ok", "")] == [(each["status"], each["reason"]) for each in documents]
        record = store.session("latest")
        assert documents == run_session([], Protocol(), store=store, resume=record) and [auto] == asked


def test_replicas_take_batches_in_turn():
    taken = [[turns(first, 5, 3, replica) for replica in range(3)] for first in range(3)]
    assert [[2, 2, 1], [1, 2, 2], [2, 1, 2]] == taken


def test_the_bubble_of_all_forward_then_all_backward():
    order = [[("F", 0), ("F", 1), ("B", 0), ("B", 1)]] * 2
    ranks = [[Work(kind, stage, number, 0, 0) for kind, number in each] for stage, each in enumerate(order)]
    times = {(kind, stage): 1.0 for kind in "FB" for stage in range(2)}
    assert pytest.approx(1 / 3) == predicted_bubble(ranks, times, one_at_a_time=False)
    assert pytest.approx(1 / 2) == predicted_bubble(
        [[Work(kind, stage, number, 0, 0) for number in range(2) for kind in "FB"] for stage in range(2)],
        times,
        one_at_a_time=True,
    )


def test_the_place_of_a_process_by_tf_config():
    text = '{"cluster": {"worker": ["one:2222", "two:2222"]}, "task": {"type": "worker", "index": 1}}'
    found = from_tf_config({"TF_CONFIG": text})
    assert (1, 2, "one", 2222) == (found.rank, found.size, found.master_address, found.master_port)
    with pytest.raises(UserError, match="--distributed: TF_CONFIG is ''"):
        from_tf_config({})


@pytest.mark.parametrize(
    ("cluster", "kind", "said"),
    [
        ({"worker": ["a:1"]}, "chief", "TF_CONFIG names chief; every process is a worker here"),
        ({"worker": ["a:1"], "ps": ["b:1"]}, "worker", "TF_CONFIG names ps; every process is a worker here"),
    ],
)
def test_other_kinds_of_tasks_than_workers_are_refused(cluster, kind, said):
    text = json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})
    with pytest.raises(UserError, match=said):
        from_tf_config({"TF_CONFIG": text})


def test_a_rank_draws_the_weights_of_its_own_stage_only():
    made = task(complete(Spec(workload="resnet8-cifar", backend="torch", mode="train", batch_size=2)))
    own = set(made.graph.cut(("layer2/0",))[1].parameters)
    part, whole = made.weights_of(own), made.weights()
    assert own == part.keys() < whole.keys()
    assert all((whole[name] == each).all() for name, each in part.items())
    assert all(whole[name] is each for name, each in made.weights_of(own).items()), "drawn again, though all are there"


@pytest.mark.parametrize(("gibi", "expected"), [(24, "return"), (512, "retain")])
def test_ranks_with_little_memory_each_give_it_back(gibi, expected, monkeypatch):
    monkeypatch.setattr(ranks, "total_memory", lambda: gibi << 30)
    found = rank_specs(sixteen_ranks(execution="recompute"))
    assert 16 == len(found) and {expected} == {each.allocator for each in found}


def test_activations_that_are_computed_again_take_less_memory(monkeypatch):
    monkeypatch.setattr(cpu, "total_memory", lambda: 24 << 30)
    again, kept = (needed_bytes(sixteen_ranks(execution=each), 4) for each in ("recompute", "eager"))
    assert again < 20 << 30 < kept


def test_memory_of_a_pipeline_is_that_of_the_micro_batches_that_its_schedule_keeps():
    """Of two stages: four micro-batches each in a Grouped pipeline, two and one by 1F1B, one each one at a time."""
    stages = task(two_stages("Grouped")).graph.cut(("layer2/0",))
    first, second = map(kept_bytes, stages)
    (handed_on,) = (4 * math.prod(stages[1].shapes[name]) for name in stages[1].live_inputs)
    grouped, interleaved, single = (needed_bytes(two_stages(each)) for each in ("Grouped", "Interleaved", "Sequential"))
    assert grouped - interleaved == 2 * first + 3 * second + 2 * handed_on
    assert interleaved - single == first + (2 * 3 + 1) * handed_on


def test_activations_that_are_computed_again_do_not_grow_with_micro_batches_but_buffers_do():
    four, eight = (needed_bytes(two_stages("Grouped", execution="recompute"), count) for count in (4, 8))
    later = task(two_stages("Grouped")).graph.cut(("layer2/0",))[1]
    assert eight - four == (8 - 4) * 3 * 4 * sum(math.prod(later.shapes[name]) for name in later.live_inputs)


def test_an_update_has_as_many_micro_batches_as_free_memory_has_room_for(monkeypatch):
    spec = two_stages("Grouped")
    monkeypatch.setattr(cpu, "free_memory", lambda: needed_bytes(spec, 7) - needed_bytes(spec, 2))
    assert [7, 5, 2] == [most_micro_batches(spec, 2, most) for most in (64, 5, 2)]
    assert 7 < most_micro_batches(spec, 2, 64, host_share=0.5), "the other half of the ranks is on another host"
    monkeypatch.setattr(cpu, "free_memory", lambda: 0)
    assert 2 == most_micro_batches(spec, 2, 64), "those that the ranks were built for have room"


def two_stages(schedule, **changes):
    facts = {"mode": "train", "batch_size": 2, "plan": Plan(stages=2), "pipeline_splits": "layer2/0"}
    facts |= {"update": Update(accumulation=4), "pipeline_schedule": schedule, "execution": "eager", **changes}
    return complete(Spec(workload="resnet8-cifar", backend="torch", **facts))


def sixteen_ranks(**changes):
    """Four replicas of four stages of ResNet-50 at batch 16."""
    splits = "layer1/2,layer2/3,layer3/3"
    facts = {"mode": "train", "batch_size": 16, "plan": Plan(replicas=4, stages=4), "pipeline_splits": splits}
    update = Update(optimiser="momentum", accumulation=16)
    return complete(Spec(workload="resnet50", backend="torch", update=update, **facts, **changes))
