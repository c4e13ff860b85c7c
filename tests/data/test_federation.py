import pytest
import torch

from fedomg.core.errors import UserError
from fedomg.data.dataset import TEST, TRAIN, Dataset
from fedomg.data.examples import Examples
from fedomg.data.federation import Federation, Shares, by_domain, pooled


def _dataset(split: bool = False) -> Dataset:
    labels = torch.arange(120) % 3
    domains = torch.arange(120) // 40
    held = torch.where(torch.arange(120) % 4 == 0, TEST, TRAIN) if split else None
    return Dataset(torch.arange(120).float().unsqueeze(1), labels, domains, ("x", "y", "z"), ("a", "b", "c"), split=held)


def _rows(federation: Federation) -> list[int]:
    parts = [part for client in federation.everyone for part in (client.train, client.validation, client.test)]
    return sorted(torch.cat([part.indices for part in parts]).tolist())


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("parts", [1, 3])
def test_every_source_row_is_used_exactly_once(split: bool, parts: int) -> None:
    federation = by_domain(_dataset(split), None, parts, Shares(0.2, 0.1), seed=0)
    assert _rows(federation) == list(range(120))
    assert len(federation.clients) == 3 * parts


def test_the_target_domain_never_trains_nor_selects() -> None:
    federation = by_domain(_dataset(), "b", 1, Shares(0.2, 0.1), seed=0)
    assert federation.target is not None
    assert sorted(federation.target.test.indices.tolist()) == list(range(40, 80))
    assert len(federation.target.train) == len(federation.target.validation) == 0
    assert [client.name for client in federation.clients] == ["a", "c"]
    assert all(not ((rows >= 40) & (rows < 80)).any() for c in federation.clients for rows in (c.train.indices, c.validation.indices))


def test_a_fixed_split_is_kept_in_sources_and_target() -> None:
    dataset = _dataset(split=True)
    assert dataset.split is not None
    federation = by_domain(dataset, "a", 2, Shares(0.2, 0.1), seed=0)
    for client in federation.everyone:
        assert (dataset.split[client.test.indices] == TEST).all()
        assert (dataset.split[client.train.indices] == TRAIN).all()
        assert (dataset.split[client.validation.indices] == TRAIN).all()


def test_shares_are_stratified() -> None:
    federation = by_domain(_dataset(), None, 1, Shares(0.25, 0.2), seed=0)
    for client in federation.clients:
        assert client.test.labels.bincount().tolist() == [3, 3, 3] or client.test.labels.bincount().sum() == 8
        assert client.validation.labels.bincount().max() - client.validation.labels.bincount().min() <= 1


def test_the_deal_depends_on_the_seed_and_nothing_else() -> None:
    first, again, other = (by_domain(_dataset(), None, 2, Shares(0.2, 0.1), seed) for seed in (1, 1, 2))
    assert torch.equal(first.clients[0].train.indices, again.clients[0].train.indices)
    assert not torch.equal(first.clients[0].train.indices, other.clients[0].train.indices)


def test_clients_of_a_domain_hold_all_its_classes() -> None:
    federation = by_domain(_dataset(), None, 4, Shares(0.0, 0.0), seed=0)
    assert all((client.train.labels.bincount(minlength=3) >= 3).all() for client in federation.clients)


def test_unknown_target_names_the_nearest() -> None:
    dataset = _dataset()
    dataset = Dataset(dataset.inputs, dataset.labels, dataset.domains, dataset.class_names, ("photo", "sketch", "cartoon"))
    with pytest.raises(UserError, match='did you mean "sketch"'):
        by_domain(dataset, "skech", 1, Shares(0.1, 0.1), 0)


def test_too_many_clients_for_a_domain_is_one_clear_line() -> None:
    with pytest.raises(UserError, match="too few for 41 clients"):
        by_domain(_dataset(), None, 41, Shares(0.1, 0.1), 0)


def test_a_client_without_training_data_is_refused_by_name() -> None:
    with pytest.raises(UserError, match='"a-1" is left without training'):
        by_domain(_dataset(), None, 40, Shares(0.9, 0.0), 0)


def test_bytes_are_scaled_and_normalised() -> None:
    dataset = Dataset(
        torch.tensor([[[[0]], [[255]]]], dtype=torch.uint8), torch.tensor([0]), torch.tensor([0]), ("x",), ("a",), (0.5, 0.25), (0.5, 0.25)
    )
    batch = Examples(dataset, torch.tensor([0])).batch(torch.tensor([0]))
    assert batch.inputs.flatten().tolist() == pytest.approx([-1.0, 3.0], abs=1e-6)


def test_floats_are_used_as_they_are() -> None:
    dataset = _dataset()
    assert torch.equal(Examples(dataset, torch.tensor([5, 7])).batch(torch.tensor([1])).inputs, torch.tensor([[7.0]]))


def test_one_client_can_hold_what_all_sources_hold() -> None:
    federation = by_domain(_dataset(), "b", 2, Shares(validation=0.25, test=0.25), seed=0)
    whole = pooled(federation)
    (everyone,) = whole.clients
    for part in ("train", "validation", "test"):
        held = torch.cat([getattr(client, part).indices for client in federation.clients])
        assert torch.equal(getattr(everyone, part).indices, held.sort().values)
    assert federation.target is not None
    assert whole.target is not None
    assert whole.target.id == 1
    assert torch.equal(whole.target.test.indices, federation.target.test.indices)
