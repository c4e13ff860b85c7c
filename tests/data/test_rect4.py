"""Rect-4: its geometry, its cues, its balance, and the variant without a shift."""

import pytest
import torch

from fedomg.core.errors import UserError
from fedomg.data.dataset import Dataset
from fedomg.data.sources import rect4

CENTRES = (-6.0, -2.0, 2.0, 6.0)
WIDTHS = (2.0, 3.0, 1.5, 2.5)
HEIGHTS = (2.0, 1.5, 3.0, 2.5)
SIGNS = (1, -1, 1, -1)


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return rect4.load(seed=0)


def domain_of(dataset: Dataset, domain: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = dataset.domains == domain
    return dataset.inputs[rows], 2 * dataset.labels[rows] - 1


def test_shapes_types_names_and_balance(dataset: Dataset) -> None:
    assert dataset.inputs.shape == (2000, 2)
    assert dataset.inputs.dtype == torch.float32
    assert dataset.labels.dtype == dataset.domains.dtype == torch.int64
    assert dataset.domain_names == ("domain1", "domain2", "domain3", "domain4")
    assert dataset.class_names == ("below", "above")
    assert dataset.split is None
    for domain in range(4):
        assert dataset.labels[dataset.domains == domain].bincount().tolist() == [250, 250]


@pytest.mark.parametrize("domain", range(4))
def test_the_local_cue_separates_without_error_within_its_rectangle(dataset: Dataset, domain: int) -> None:
    inputs, sides = domain_of(dataset, domain)
    across = SIGNS[domain] * sides * (inputs[:, 0] - CENTRES[domain])
    assert across.min() >= 0.2 - 1e-5
    assert across.max() <= WIDTHS[domain] + 1e-5
    assert across.max() > 0.95 * WIDTHS[domain]


@pytest.mark.parametrize("domain", range(4))
def test_the_shared_boundary_is_y_zero_with_noise(dataset: Dataset, domain: int) -> None:
    inputs, sides = domain_of(dataset, domain)
    along = sides * inputs[:, 1]
    correct = float((along > 0).float().mean())
    assert 0.8 < correct < 1
    expected = (0.1 + HEIGHTS[domain]) / 2
    spread = ((HEIGHTS[domain] - 0.1) ** 2 / 12 + 0.25) ** 0.5
    assert float(along.mean()) == pytest.approx(expected, abs=4 * spread / 500**0.5)
    assert float(along.std()) == pytest.approx(spread, rel=0.15)


def test_a_local_cue_misleads_in_the_neighbouring_domain(dataset: Dataset) -> None:
    inputs, sides = domain_of(dataset, 1)
    assert bool((torch.sign(inputs[:, 0] - CENTRES[1]) == -sides).all())


def test_the_seed_decides_everything() -> None:
    assert torch.equal(rect4.load(3).inputs, rect4.load(3).inputs)
    assert not torch.equal(rect4.load(3).inputs, rect4.load(4).inputs)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    rect4.load(0)
    assert torch.equal(before, torch.get_rng_state())


def test_without_shift_the_same_points_are_dealt_at_random(dataset: Dataset) -> None:
    mixed = rect4.load(0, shift=False)
    assert mixed.domains.bincount().tolist() == [500] * 4

    def sorted_points(data: Dataset) -> list[list[float]]:
        rows: list[list[float]] = torch.cat([data.inputs, data.labels[:, None]], dim=1).tolist()
        return sorted(rows)

    assert sorted_points(mixed) == sorted_points(dataset)
    for domain in range(4):
        inputs, _ = domain_of(mixed, domain)
        nearest = (inputs[:, :1] - torch.tensor(CENTRES)).abs().argmin(dim=1).bincount(minlength=4)
        assert nearest.min() > 60  # every hand holds points of every rectangle
    assert torch.equal(rect4.load(0, shift=False).inputs, mixed.inputs)


@pytest.mark.parametrize(("points", "counts"), [(2, [1, 1]), (7, [4, 3])])
def test_few_points_are_balanced_as_well_as_they_can_be(points: int, counts: list[int]) -> None:
    dataset = rect4.load(0, points)
    for domain in range(4):
        assert dataset.labels[dataset.domains == domain].bincount().tolist() == counts


@pytest.mark.parametrize("points", [1, 0, -5])
def test_too_few_points_are_refused(points: int) -> None:
    with pytest.raises(UserError, match=f"not {points}$"):
        rect4.load(0, points)
