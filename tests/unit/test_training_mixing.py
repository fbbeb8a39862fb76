"""Mixup and cutmix."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layermark.errors import UserError
from layermark.training.mixing import Box, Coefficients, Mixing


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def torch_namespace(torch):
    import array_api_compat.torch

    return array_api_compat.torch


def drawn(mixing, *, batch=5, height=8, width=8, seed=1, update=0, micro_batch=0):
    return mixing.coefficients(
        batch=batch, height=height, width=width, seed=seed, update=update, micro_batch=micro_batch
    )


def test_mixup_takes_the_picture_before():
    found = Coefficients(own=np.array([0.75, 1.0, 0.5]), pasted=np.zeros((1, 1), bool), kept=1.0, shift=2)
    x = np.array([1.0, 2.0, 4.0]).reshape(3, 1, 1, 1)
    assert [0.75 * 1 + 0.25 * 4, 2.0, 3.0] == found.pictures(x, xp=np).reshape(-1).tolist()
    assert np.array_equal([[0.75, 0, 0.25], [0, 1, 0], [0, 0.5, 0.5]], found.label_shares())


def test_cutmix_pastes_a_box_from_two_places_back():
    pasted = np.array([[True, False], [False, False]])
    found = Coefficients(own=np.ones(3), pasted=pasted, kept=0.75, shift=2)
    x = np.arange(3.0).reshape(3, 1, 1, 1) * np.ones((3, 2, 2, 2))
    mixed = found.pictures(x, xp=np)
    assert [1, 2, 0] == mixed[:, 1, 0, 0].tolist() and [0, 1, 2] == mixed[:, 0, 1, 1].tolist()
    assert np.array_equal([[0.75, 0.25, 0], [0, 0.75, 0.25], [0.25, 0, 0.75]], found.label_shares())


def test_the_label_is_a_mix_of_four():
    m = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
    found = Coefficients(own=m, pasted=np.zeros((1, 1), bool), kept=0.85, shift=2)
    expected = np.zeros(5)
    # Picture 4: itself, 3 (mixup partner), 2 (pasted), 1 (the pasted one's partner).
    expected[[4, 3, 2, 1]] = 0.5 * 0.85, 0.5 * 0.85, 0.7 * 0.15, 0.3 * 0.15
    assert pytest.approx(expected) == found.label_shares()[4]


@given(
    alpha=st.floats(0, 5),
    kept=st.floats(0, 1),
    version=st.sampled_from([1, 2]),
    batch=st.integers(2, 9),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seed=st.integers(0, 2**31),
)
def test_weights_sum_to_one(alpha, kept, version, batch, size, seed):
    mixing = Mixing(mixup_alpha=alpha, cutmix_lambda=kept, cutmix_version=version)
    found = drawn(mixing, batch=batch, height=size[0], width=size[1], seed=seed)
    shares = found.label_shares()
    assert np.allclose(1, shares.sum(axis=1)) and (shares >= 0).all() and (shares <= 1 + 1e-12).all()
    assert (0.5 <= found.own).all() and (found.own <= 1).all()
    assert pytest.approx(1 - found.pasted.mean()) == found.kept
    # A picture of one value everywhere stays as it is, whatever it is mixed with.
    ones = np.ones((batch, 2, *size))
    np.testing.assert_allclose(found.pictures(ones, xp=np), ones)


@given(seed=st.integers(0, 10_000))
def test_version_two_keeps_the_box_inside(seed):
    found = drawn(Mixing(cutmix_lambda=0.85, cutmix_version=2), height=224, width=224, seed=seed)
    assert round(224 * 0.15**0.5) ** 2 == found.pasted.sum()


def test_version_one_clips_at_the_edges_and_counts_what_was_kept():
    kept = [drawn(Mixing(cutmix_lambda=0.85), height=224, width=224, seed=seed).kept for seed in range(300)]
    assert pytest.approx(1 - round(224 * 0.15**0.5) ** 2 / 224**2) == min(kept)
    assert max(kept) > 0.9 and 0.85 < np.mean(kept) < 0.92


def test_coefficients_depend_on_seed_update_and_micro_batch_only():
    mixing = Mixing(mixup_alpha=0.2, cutmix_lambda=0.85)
    first, again = drawn(mixing), drawn(mixing)
    assert np.array_equal(first.own, again.own) and np.array_equal(first.pasted, again.pasted)
    for change in ({"seed": 2}, {"update": 1}, {"micro_batch": 1}):
        assert not np.array_equal(first.own, drawn(mixing, **change).own)


def test_a_batch_of_two_pastes_from_one_place_back():
    assert [1, 2, 2] == [drawn(Mixing(cutmix_lambda=0.5), batch=batch).shift for batch in (2, 3, 8)]


def test_nothing_is_mixed_by_default():
    x = np.random.default_rng(0).standard_normal((4, 3, 8, 8))
    found = drawn(Mixing(), batch=4)
    assert not Mixing().active and np.array_equal(x, found.pictures(x, xp=np))
    assert np.array_equal(np.eye(4), found.label_shares())


def test_torch_mixes_the_same(torch, torch_namespace):
    x, rows = np.random.default_rng(0).standard_normal((5, 3, 8, 8)), np.eye(5)
    found = drawn(Mixing(mixup_alpha=0.4, cutmix_lambda=0.6))
    pictures = found.pictures(torch.as_tensor(x), xp=torch_namespace)
    labels = found.labels(torch.as_tensor(rows), xp=torch_namespace)
    np.testing.assert_allclose(pictures.numpy(), found.pictures(x, xp=np), rtol=1e-14)
    np.testing.assert_allclose(labels.numpy(), found.labels(rows, xp=np), rtol=1e-14)


def test_a_narrow_type_stays():
    x = np.ones((5, 3, 8, 8), "float32")
    assert "float32" == drawn(Mixing(mixup_alpha=0.4)).pictures(x, xp=np).dtype


@pytest.mark.parametrize("mixing", [Mixing(mixup_alpha=0.2), Mixing(cutmix_lambda=0.85)])
def test_one_picture_cannot_be_mixed(mixing):
    with pytest.raises(UserError, match="with a batch of 1: expected two pictures or more"):
        drawn(mixing, batch=1)


@pytest.mark.parametrize("wrong", [{"mixup_alpha": -1.0}, {"cutmix_lambda": 1.5}, {"cutmix_version": 3}])
def test_impossible_mixing(wrong):
    with pytest.raises(UserError, match="expected"):
        Mixing(**wrong)


def test_the_area_of_a_box():
    assert 6 == Box(top=1, bottom=3, left=2, right=5).area
