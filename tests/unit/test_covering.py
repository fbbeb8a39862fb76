"""The sample of a matrix that the gate runs."""

import itertools

from contract.covering import covering, pairs_of, product

AXES = ("abcdefg", "tuvwxyz", (1, 2))


def test_every_pair_is_there_in_fewer_cases():
    every = list(itertools.product(*AXES))
    found = covering(every)
    assert set().union(*map(pairs_of, every)) == set().union(*map(pairs_of, found))
    assert 49 <= len(found) < 70
    assert found == sorted(found, key=every.index)


def test_the_full_product_when_asked_for():
    every = list(itertools.product(*AXES))
    assert every == covering(every, full=True)


def test_two_axes_have_no_fewer_cases():
    assert list(itertools.product("ab", "xyz")) == product("ab", "xyz")
