"""Partitions: nothing lost, nothing doubled, sizes as promised, one seed one deal."""

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedomg.core.errors import UserError
from fedomg.data import partition
from fedomg.data.partition import Indices, Parts

SEEDS = st.integers(0, 2**32)
BALANCED = np.arange(6000) % 10
CHECKED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def pools(draw: st.DrawFn) -> Indices:
    """Labels in any order and any proportion; some classes may be empty."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any))
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return np.random.default_rng(draw(SEEDS)).permutation(labels)


def assert_exact_cover(parts: Parts, count: int) -> None:
    assert np.sort(np.concatenate(parts)).tolist() == list(range(count))
    assert all((np.diff(part) > 0).all() for part in parts)


def counts_of(parts: Parts, labels: Indices) -> Indices:
    return np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


def same(one: Parts, other: Parts) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@CHECKED
@given(pools(), st.integers(1, 30), SEEDS)
def test_iid_deals_every_class_evenly(labels: Indices, clients: int, seed: int) -> None:
    assume(clients <= len(labels))
    parts = partition.iid(labels, clients, seed)
    assert_exact_cover(parts, len(labels))
    counts = counts_of(parts, labels)
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1
    assert same(parts, partition.iid(labels, clients, seed))


@CHECKED
@given(pools(), st.integers(1, 12), st.sampled_from([1e-4, 0.05, 0.1, 1, 100]), st.integers(1, 5), SEEDS)
def test_dirichlet_covers_and_leaves_nobody_below_the_least(labels: Indices, clients: int, alpha: float, least: int, seed: int) -> None:
    assume(clients * least <= len(labels))
    parts = partition.dirichlet(labels, clients, alpha, least, repair=True, seed=seed)
    assert len(parts) == clients
    assert_exact_cover(parts, len(labels))
    assert min(map(len, parts)) >= least


@settings(CHECKED, max_examples=10)
@given(st.integers(2, 10), st.sampled_from([0.1, 0.5, 1]), SEEDS)
def test_dirichlet_is_deterministic(clients: int, alpha: float, seed: int) -> None:
    parts = partition.dirichlet(BALANCED, clients, alpha, None, repair=False, seed=seed)
    assert_exact_cover(parts, len(BALANCED))
    assert min(map(len, parts)) >= min(40, len(BALANCED) / clients / 2)
    assert same(parts, partition.dirichlet(BALANCED, clients, alpha, None, repair=False, seed=seed))
    assert not same(parts, partition.dirichlet(BALANCED, clients, alpha, None, repair=False, seed=seed + 1))


@CHECKED
@given(pools(), st.integers(1, 30), st.integers(1, 6), SEEDS)
def test_pathological_gives_exactly_so_many_classes_or_says_why_not(labels: Indices, clients: int, classes: int, seed: int) -> None:
    sizes = np.bincount(labels)
    present, places = int((sizes > 0).sum()), clients * classes
    possible = classes <= present <= places <= np.minimum(sizes, clients).sum() and clients <= len(labels)
    if not possible:
        with pytest.raises(UserError, match=r"data\.clients|data\.classes_per_client"):
            partition.pathological(labels, clients, classes, seed)
        return
    parts = partition.pathological(labels, clients, classes, seed)
    assert_exact_cover(parts, len(labels))
    assert ((counts_of(parts, labels) > 0).sum(axis=1) == classes).all()
    assert same(parts, partition.pathological(labels, clients, classes, seed))


def test_pathological_clients_of_balanced_classes_are_of_one_size() -> None:
    parts = partition.pathological(BALANCED, 20, 2, seed=0)
    assert {len(part) for part in parts} == {300}
    pairs = {tuple(np.unique(BALANCED[part])) for part in parts}
    assert len(pairs) > 5  # who holds which classes is random


def test_pathological_gives_large_classes_to_more_clients() -> None:
    labels = np.repeat([0, 1], [900, 100])
    counts = counts_of(partition.pathological(labels, 10, 1, seed=0), labels)
    assert (counts > 0).sum(axis=0).tolist() == [9, 1]
    assert np.ptp(counts.sum(axis=1)) == 0


def test_a_smaller_alpha_is_more_skewed() -> None:
    def classes_a_client(alpha: float) -> float:
        parts = partition.dirichlet(BALANCED, 20, alpha, 1, repair=False, seed=0)
        return float((counts_of(parts, BALANCED) > 0).sum(axis=1).mean())

    assert classes_a_client(0.1) < classes_a_client(1) < classes_a_client(100) == 10


def test_dirichlet_shares_have_the_moments_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    # In the first class nobody is full: the shares are Dir(alpha) itself, with variance (1/U)(1 - 1/U) / (U alpha + 1).
    clients, alpha, size = 5, 0.5, 10**6
    generator = np.random.default_rng(0)
    first = np.stack([partition._one_draw(np.array([size]), clients, alpha, size, generator)[0] / size for _ in range(4000)])
    assert first.mean(axis=0) == pytest.approx(np.full(clients, 0.2), abs=0.02)
    assert first.var(axis=0) == pytest.approx(np.full(clients, 0.2 * 0.8 / (clients * alpha + 1)), rel=0.1)


def test_a_full_client_gets_nothing_more() -> None:
    sizes = np.full(10, 600)
    generator = np.random.default_rng(0)
    for _ in range(50):
        counts = partition._one_draw(sizes, 10, 0.1, 600, generator)
        before = np.cumsum(counts, axis=0) - counts
        # What is left over by rounding goes to the last client, full or not.
        assert (counts[:, :-1][before[:, :-1] >= 600] == 0).all()
        assert (counts[:, -1][before[:, -1] >= 600] <= 1).all()
        assert (counts.sum(axis=1) == 600).all()


def test_the_paper_setting_is_found_within_the_attempts() -> None:
    labels = np.arange(70_000) % 10
    for seed in range(3):
        parts = partition.dirichlet(labels, 100, 0.1, None, repair=False, seed=seed)
        assert min(map(len, parts)) >= 40


def test_attempts_are_bounded_and_the_error_says_what_to_change() -> None:
    with pytest.raises(UserError, match=r"5000 draws with data.alpha = 0.01 .*fewer than 40.*raise data.alpha, lower data.least"):
        partition.dirichlet(np.arange(2000) % 10, 20, 0.01, 40, repair=False, seed=0)


def test_repair_takes_no_more_than_is_needed() -> None:
    labels = np.arange(2000) % 10
    parts = partition.dirichlet(labels, 20, 0.01, 40, repair=True, seed=0)
    assert min(map(len, parts)) == 40
    assert_exact_cover(parts, 2000)


@pytest.mark.parametrize(
    "deal", [lambda n: partition.iid(np.zeros(5, int), n, 0), lambda n: partition.pathological(np.zeros(5, int), n, 1, 0)]
)
def test_more_clients_than_examples(deal: Callable[[int], Parts]) -> None:
    assert len(deal(5)) == 5
    with pytest.raises(UserError, match=r"5 examples are too few for 6 clients; lower data.clients"):
        deal(6)


def test_a_least_that_cannot_be_had() -> None:
    with pytest.raises(UserError, match=r"100 examples cannot give each of 10 clients 11; lower data\.least"):
        partition.dirichlet(np.arange(100) % 10, 10, 1, 11, repair=True, seed=0)


@pytest.mark.parametrize(
    ("clients", "classes", "message"),
    [(10, 3, "hold only 2 classes"), (1, 1, "2 classes do not fit"), (45, 2, "too small to be divided among so many")],
)
def test_pathological_partitions_that_do_not_exist(clients: int, classes: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        partition.pathological(np.arange(60) % 2, clients, classes, 0)


@pytest.mark.parametrize(("alpha", "repair"), [(0.1, True), (10, False)])
def test_a_thousand_clients_take_seconds(alpha: float, repair: bool) -> None:
    labels = np.arange(60_000) % 10
    start = time.process_time()
    parts = partition.dirichlet(labels, 1000, alpha, None, repair=repair, seed=0)
    assert time.process_time() - start < 20
    assert len(parts) == 1000
    assert min(map(len, parts)) >= 30
    assert_exact_cover(parts, 60_000)
