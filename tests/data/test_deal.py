"""From options to a federation: defaults, shares, targets, and keys that would change nothing."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedomg.core.errors import UserError
from fedomg.data.dataset import TEST, TRAIN, Dataset
from fedomg.data.deal import deal, heterogeneity, label_counts
from fedomg.data.federation import Federation, Shares, by_domain
from fedomg.data.options import DOMAIN_SHIFT, LABEL_SHIFT, DataOptions, resolve


def pool(count: int = 600, domains: int = 1, split: bool = False, classes: int = 5) -> Dataset:
    rows = torch.arange(count)
    return Dataset(
        rows.float().unsqueeze(1),
        rows % classes,
        rows * domains // count,
        tuple("vwxyz"[:classes]),
        tuple("abcd"[:domains]),
        split=torch.where(rows % 4 == 0, TEST, TRAIN) if split else None,
    )


def options(**keys: Any) -> DataOptions:
    return DataOptions(**keys)


def rows_of(federation: Federation) -> list[int]:
    parts = [part.indices for client in federation.everyone for part in (client.train, client.validation, client.test)]
    return torch.cat(parts).sort().values.tolist()


LABEL_PARTITIONS: list[dict[str, Any]] = [
    {"partition": "iid", "clients": 12},
    {"partition": "dirichlet", "clients": 12, "least": 5},
    {"partition": "pathological", "clients": 12, "classes_per_client": 3},
    {"partition": "domain-label", "clients_per_domain": 4, "alpha": 0.3, "least": 3},
]


@pytest.mark.parametrize("keys", LABEL_PARTITIONS, ids=lambda keys: keys["partition"])
@pytest.mark.parametrize("target", [None, "b"])
@pytest.mark.parametrize("split", [False, True])
def test_every_row_is_used_exactly_once(keys: dict[str, Any], target: str | None, split: bool) -> None:
    dataset = pool(domains=3, split=split)
    federation = deal(dataset, target, options(**keys), seed=0)
    expected = (
        torch.arange(600) if target is None or not split else torch.arange(600)[(dataset.domains != 1) | (torch.arange(600) % 4 == 0)]
    )
    assert rows_of(federation) == expected.tolist()
    assert len(federation.clients) == (12 if keys["partition"] != "domain-label" or target is None else 8)
    assert [client.id for client in federation.everyone] == list(range(len(federation.everyone)))
    if target is not None:
        assert federation.target is not None
        assert federation.target.name == "b"
        held = {*range(200, 400)}
        assert not held & {int(row) for client in federation.clients for row in client.train.indices}


@settings(deadline=None, max_examples=40)
@given(st.integers(20, 400), st.integers(1, 8), st.integers(0, 10**6))
def test_a_quarter_of_each_client_is_for_tests(count: int, clients: int, seed: int) -> None:
    federation = deal(pool(count), None, options(partition="iid", clients=clients), seed)
    assert rows_of(federation) == list(range(count))
    for client in federation.clients:
        n = len(client.train) + len(client.test)
        assert len(client.validation) == 0
        assert len(client.train) == int(0.75 * n)


def test_the_split_is_random_and_depends_on_the_seed_alone() -> None:
    first, again, other = (deal(pool(), None, options(partition="iid", clients=3), seed) for seed in (0, 0, 1))
    assert torch.equal(first.clients[0].test.indices, again.clients[0].test.indices)
    assert not torch.equal(first.clients[0].test.indices, other.clients[0].test.indices)
    counts = torch.stack([client.test.labels.bincount(minlength=5) for client in first.clients])
    assert bool((counts != 10).any())  # not stratified


def test_shares_can_be_chosen() -> None:
    federation = deal(pool(100), None, options(partition="iid", clients=1, test=0.3, validation=0.1), 0)
    (client,) = federation.clients
    assert (len(client.train), len(client.validation), len(client.test)) == (63, 7, 30)


def test_a_single_domain_is_dealt_by_label() -> None:
    federation = deal(pool(4000), None, options(alpha=1.0), 0)
    assert len(federation.clients) == 100
    assert sum(len(client.test) for client in federation.clients) == pytest.approx(1000, abs=100)


def test_several_domains_are_dealt_as_they_always_were() -> None:
    ours, theirs = deal(pool(domains=3), "a", options(clients_per_domain=2), 3), by_domain(pool(domains=3), "a", 2, Shares(0.1, 0.1), 3)
    for one, other in zip(ours.everyone, theirs.everyone, strict=True):
        assert one.name == other.name
        for part in ("train", "validation", "test"):
            assert torch.equal(getattr(one, part).indices, getattr(other, part).indices)


def test_domain_and_label_keeps_domains_apart() -> None:
    federation = deal(pool(domains=3), None, options(partition="domain-label", clients_per_domain=4, alpha=0.3, least=3), 0)
    assert [client.name for client in federation.clients[:5]] == ["a-1", "a-2", "a-3", "a-4", "b-1"]
    for client in federation.clients:
        rows = torch.cat([client.train.indices, client.test.indices])
        assert len(federation.dataset.domains[rows].unique()) == 1
    first, second = label_counts(federation)[:4], label_counts(federation)[4:8]
    assert not torch.equal(first, second)


def test_a_target_where_there_is_one_domain() -> None:
    with pytest.raises(UserError, match='target "a" cannot be held out: the data set has a single domain; remove the target'):
        deal(pool(), "a", options(), 0)


def test_an_unknown_target() -> None:
    with pytest.raises(UserError, match='no domain is called "q"'):
        deal(pool(domains=2), "q", options(partition="iid", clients=3), 0)


def test_a_client_without_training_data() -> None:
    with pytest.raises(UserError, match='"client-0" is left without training examples'):
        deal(pool(10), None, options(partition="iid", clients=10), 0)


def test_too_many_clients_of_a_domain() -> None:
    with pytest.raises(UserError, match=r"too few for 201 clients; lower data\.clients_per_domain"):
        deal(pool(domains=3), None, options(partition="domain-label", clients_per_domain=201), 0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"partition": "domain", "clients": 3}, 'data.clients has no effect with data.partition = "domain"'),
        ({"alpha": 1.0}, 'data.alpha has no effect with data.partition = "domain".*"dirichlet" or "domain-label"'),
        ({"partition": "iid", "clients_per_domain": 2}, "data.clients_per_domain has no effect"),
        ({"partition": "dirichlet", "classes_per_client": 2}, 'set data.partition to "pathological"'),
        ({"partition": "pathological", "least": 2}, "data.least has no effect"),
        ({"partition": "iid", "repair": False}, "data.repair has no effect"),
    ],
)
def test_keys_that_change_nothing_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(options(**keys), DOMAIN_SHIFT)


def test_defaults_follow_the_data_set_and_the_partition() -> None:
    label = resolve(options(), LABEL_SHIFT)
    assert (label.partition, label.clients, label.alpha, label.repair) == ("dirichlet", 100, 0.1, False)
    assert (label.validation, label.test) == (0.0, 0.25)
    assert label.clients_per_domain is label.classes_per_client is label.least is None
    domain = resolve(options(test=0.0), DOMAIN_SHIFT)
    assert (domain.partition, domain.clients_per_domain, domain.validation, domain.test) == ("domain", 1, 0.1, 0.0)
    assert domain.clients is domain.alpha is None
    assert resolve(label, LABEL_SHIFT) == label


def test_heterogeneity_is_zero_for_equal_and_near_one_for_disjoint_clients() -> None:
    assert heterogeneity(torch.tensor([[2, 4], [1, 2], [10, 20]])) == pytest.approx(0)
    assert heterogeneity(5 * torch.eye(20, dtype=torch.int64)) == pytest.approx(0.95)
    assert heterogeneity(torch.tensor([[3, 1], [1, 3]])) == pytest.approx(0.25)
