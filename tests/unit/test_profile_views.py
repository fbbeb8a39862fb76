"""Views of a profile: the program as a tree, runtimes side by side, what is alive, and all of it on a page."""

import io
import json
import re

import pytest

from layermark.report import html, profiles
from layermark.report.model import build
from layermark.report.profile import profile_lines, render_profiles
from layermark.stats.accounts import operator_changes, side_by_side

from .test_profile_facts import operator, profiled


def rows(*given):
    """Operators by their nodes and milliseconds of a batch."""
    return [
        operator(2 * ms / 1e3, node=tuple(node.split()), name=f"k{place}") for place, (node, ms) in enumerate(given)
    ]


def test_the_tree_adds_up_what_is_below_a_branch():
    found = profiled(*rows(("b1/conv b1/relu", 6), ("b1/sum", 1), ("fc", 2.5), ("", 0.5)))["profile"]
    assert [
        ("b1", 0, 0.7),
        ("conv + relu", 1, 0.6),
        ("sum", 1, 0.1),
        ("fc", 0, 0.25),
        ("tied to no node", 0, 0.05),
    ] == [(each.name, each.depth, pytest.approx(each.share)) for each in profiles.tree(found)]


def test_the_tree_goes_in_the_graphs_order_however_long_its_parts_take():
    given = rows(("fc", 4), ("", 3), ("b10/conv", 2), ("b9/sum", 1), ("stem pool", 0.5), ("b9/conv b9/relu", 0.4))
    order = ["x", "stem", "pool", "b9/conv", "b9/relu", "b9/sum", "b10/conv", "fc"]
    found = profiled(*given, nodes=order)["profile"]
    shown = ["stem + pool", "b9", "conv + relu", "sum", "b10", "conv", "fc", "tied to no node"]
    assert shown == [each.name for each in profiles.tree(found)]
    of_before = [each.name for each in profiles.tree(profiled(*given)["profile"]) if each.depth == 0]
    assert ["fc", "tied to no node", "b10", "b9", "stem + pool"] == of_before


def test_the_tree_leaves_out_what_is_too_short_to_matter():
    found = profiled(*rows(("b1/conv", 9.95), ("b1/pad", 0.05)))["profile"]
    assert ["b1", "conv"] == [each.name for each in profiles.tree(found)]


def test_of_a_large_tree_the_deepest_and_shortest_branches_are_summed_up():
    given = [(f"b{block}/part{part}/conv", 4 + part) for block in range(4) for part in range(5)]
    found = profiled(*rows(*given))["profile"]
    assert 4 + 20 + 20 == len(profiles.tree(found, most=44))
    *shown, rest = profiles.tree(found, most=13)
    assert [name for block in range(4) for name in (f"b{block}", "part3", "part4")] == [each.name for each in shown]
    # Twelve parts with what is below them, and what is below the eight that are shown: nothing counts twice.
    assert ("32 more", 0, pytest.approx(1.0)) == (rest.name, rest.depth, rest.share)
    *_, rest = profiles.tree(found, most=25)
    assert ("20 more", pytest.approx(sum(ms for _, ms in given) / 1e3)) == (rest.name, rest.time_s)


def test_a_terminal_counts_only_the_levels_that_it_shows():
    found = profiled(*rows(*((f"b{block}/part/conv{at}", 1) for block in range(3) for at in range(20))))["profile"]
    assert "60 more" not in "\n".join(profile_lines("it", found)) and "more" in profiles.tree(found)[-1].name


def test_runtimes_that_fuse_other_nodes_stand_side_by_side():
    fused = profiled(*rows(("conv1 relu1", 3), ("fc", 1)))["profile"]
    separate = profiled(*rows(("conv1", 2), ("relu1", 2), ("fc", 1.5), ("", 0.5)))["profile"]
    found = {each.name: each.times_s for each in side_by_side([fused, separate])}
    assert pytest.approx((0.003, 0.004)) == found["conv1 + relu1"]
    assert pytest.approx((0.001, 0.0015)) == found["fc"]
    assert (None, pytest.approx(0.0005)) == found["tied to no node"]


def test_what_became_slower_comes_first_and_what_became_faster_last():
    before = profiled(*rows(("a", 3), ("b", 3), ("c", 3)))["profile"]
    after = profiled(*rows(("a", 2.5), ("b", 4), ("c", 3.2)))["profile"]
    assert [("b",), ("c",), ("a",)] == [each.nodes for each in operator_changes(before, after)]
    assert [("b",), ("c",), ("a",)] == [each.nodes for each in operator_changes(after, before)]


def a_page(*documents):
    return html.page(build(list(documents)))


LIVENESS = {
    "source": "graph",
    "unit": "node",
    "peak_bytes": 4000,
    "peak_at": 2,
    "points": [[0, 0], [1, 3000], [2, 4000], [3, 1000]],
    "alive": [{"node": "b1/conv", "bytes": 3000}, {"node": "fc", "bytes": 500}],
}
TIMELINE = {
    "bars": [{"lane": "thread 1", "name": "b1/conv (Conv)", "start_s": 0.0, "end_s": 0.006}],
    "left_out": 3,
    "left_out_s": 0.001,
}


def with_everything(backend, *given, **changes):
    more = {"liveness": LIVENESS, "timeline": TIMELINE, "files": ["some where/it.trace.json"], **changes}
    return profiled(*rows(*given), backend=backend, **more)


def data(*documents):
    """What the script of a page draws, with the texts that it looks up."""
    return json.loads(re.search(r'id="data">(.*?)</script>', a_page(*documents))[1])


def test_a_page_has_every_view():
    documents = [
        with_everything("torch", ("b1/conv", 6), ("b1/relu", 1), ("fc", 2)),
        with_everything("jax", ("b1/conv b1/relu", 4), ("fc", 3)),
    ]
    page, found = a_page(*documents), data(*documents)
    assert 2 == page.count('class="profile"') == len(found["profiles"])
    assert "the same nodes on each runtime" in page
    ((comparison,), pool) = found["comparisons"], found["pool"]
    assert "b1/conv + b1/relu" in [pool[line[0]] for line in comparison["lines"] if isinstance(line[0], int)]
    for each in found["profiles"]:
        sums, before = each["lists"]
        assert "beside the timed step of 10.0 ms" in sums[0][1] and before
        assert each["tree"] and each["alive"] and each["lines"]
        assert [0, 0, 1, 3000, 2, 4000, 3, 1000] == each["memory"]["points"]
        assert "derived from the graph" in each["memory"]["label"]
        assert "layermark trace 'some where/it.trace.json' --open" == each["trace"]
        ((lane, (place, began, lasted)),) = each["timeline"]["lanes"]
        assert ("thread 1", "b1/conv (Conv)", 0, 6000) == (lane, pool[place], began, lasted)
        assert "3 more pieces of work left out" == each["timeline"]["note"]


def test_a_profile_of_an_earlier_version_has_what_it_told():
    memory = {"peak_bytes": 4000, "alive": [{"node": "b1/conv", "bytes": 3000}]}
    document = profiled(*rows(("b1/conv", 6), ("fc", 2)), memory=memory)
    assert not {"liveness", "timeline"} & set(document["profile"])
    (found,) = data(document)["profiles"]
    assert not {"memory", "timeline", "trace"} & set(found)
    assert [["b1/conv", "3.00 kB", "75.0%"]] == found["alive"]


def test_a_terminal_has_every_view():
    shown = io.StringIO()
    documents = [
        with_everything("torch", ("b1/conv", 6), ("b1/relu", 1), ("fc", 2)),
        with_everything("jax", ("b1/conv b1/relu", 4), ("fc", 3)),
    ]
    render_profiles(documents, shown)
    text = shown.getvalue()
    for words in ("program tree", "alive at the peak of memory, derived", "before it", "compile 0.500 s"):
        assert words in text, words
    line = [each for each in text.splitlines() if each.startswith("b1/conv + b1/relu ")][-1]
    assert 2 == text.count("memory over time  [ #@:] at most 4.00 kB, at node 2; derived from the graph")
    assert {"7.00", "4.00"} < set(line.split()) and line.endswith("1.8 x")


def test_names_do_not_run_in_any_view():
    evil = "</summary><script>alert(1)</script>"
    documents = [with_everything("torch", (evil, 6), ("fc", 3)), with_everything("jax", (evil, 6), ("fc", 3))]
    documents[0]["profile"]["liveness"] = {**LIVENESS, "source": evil, "alive": [{"node": evil, "bytes": 1}]}
    documents[0]["profile"]["timeline"] = {**TIMELINE, "bars": [{**TIMELINE["bars"][0], "lane": evil, "name": evil}]}
    documents[0]["profile"]["insights"].append({"code": "x", "text": evil})
    page = a_page(*documents)
    assert 1 == page.count("</script></body>") and "<script>alert" not in page
    assert "\x1b" not in "".join(profile_lines("it", profiled(operator(0.02, node=("a\x1b[2J",)))["profile"]))
