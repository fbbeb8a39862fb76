"""`layermark run` with a network in several processes: stages that are named, stages that are measured, replicas."""

import os

import pytest

from conftest import QUICKLY

pytest.importorskip("torch")
FULL = os.environ.get("LAYERMARK_TEST_FULL") == "1"
SMALL = ("--backend", "torch", "--image-size", "8", "--batch-size", "2", "--threads", "2", "--json", *QUICKLY)


def measured(layermark, *words):
    """The one document of a run that went well."""
    done = layermark("run", "resnet8-cifar", *SMALL, *words)
    assert 0 == done.status, done.stderr
    (document,) = done.documents
    assert document["verified"]["ok"], document
    return document


def assert_two_stages(document):
    facts = document["pipeline"]
    assert [0, 1] == [each["stage"] for each in facts["stages"]] and 2 == facts["ranks"]
    assert pytest.approx(1.0) == sum(each["share"] for each in facts["stages"])
    assert 0 <= facts["bubble"] < 1 and {"rank 0", "rank 1"} == {each["lane"] for each in document["lanes"]}


def test_stages_are_cut_where_they_take_equally_long(layermark):
    document = measured(layermark, "--pipeline-splits", "auto", "--stages", "2", "--mode", "train", "--accumulation", 4)
    assert_two_stages(document)
    assert document["spec"]["pipeline_splits"] not in ("", "auto") and 4 == document["pipeline"]["micro_batches"]


@pytest.mark.skipif(not FULL, reason="four ranks; LAYERMARK_TEST_FULL=1 runs it")
def test_copies_of_a_pipeline_in_inference(layermark):
    document = measured(layermark, "--pipeline-splits", "layer2/0", "--replicas", "2")
    assert_two_stages(document)
    assert (2, 2) == (document["spec"]["plan"]["replicas"], document["spec"]["plan"]["stages"])
    assert not document.get("communication")
