"""`layermark run --replicas 1,2`: one process with all threads against two with half of them, in turn."""


def test_one_process_against_two_names_the_faster(layermark):
    asked = ["dense", "--backend", "null", "--size", "64", "--threads", "2", "--replicas", "1,2", "--time-box", "1s"]
    done = layermark("run", *asked)
    assert 0 == done.status, done.stdout + done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("dense ")]
    assert 2 == len(rows)
    assert [True] == [" x2 " in row for row in rows if row.endswith("fastest")] or "cannot tell" in done.stdout
    one, two = sorted(layermark.kept(), key=lambda each: each["spec"]["plan"]["replicas"])
    assert [(1, 2), (2, 2)] == [(each["spec"]["plan"]["replicas"], each["spec"]["threads"]) for each in (one, two)]
    assert one["group"] == two["group"] and two["scaling"]["efficiency"] and 2 == len(two["ranks"])
    # The ceiling of the null runtime is that of a process, so that of two processes at once is twice as high.
    ceilings = [each["ceiling"]["flops_per_s"] for each in (one, two)]
    assert 1.9 < ceilings[1] / ceilings[0] < 2.1
