"""Data sets of the user's own."""

import itertools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from fedomg.core.errors import UserError
from fedomg.data.deal import deal
from fedomg.data.examples import Examples
from fedomg.data.options import DataOptions
from fedomg.data.sources import own


class Pairs(Dataset[Any]):
    """Any list of pairs, with whatever attributes."""

    def __init__(self, pairs: list[Any], **attributes: Any) -> None:
        self.pairs = pairs
        vars(self).update(attributes)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Any:
        return self.pairs[index]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return ((torch.full((2,), float(i)), i % 2) for i in range(6))


Load = Callable[[Any], Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Load:
    module = ModuleType("own_module")
    monkeypatch.setitem(sys.modules, "own_module", module)

    def load_it(value: Any) -> Any:
        vars(module)["name"] = value
        return own.load("own_module:name", seed=0)

    return load_it


def vectors(count: int = 6) -> list[Any]:
    return [(torch.full((3,), float(i)), i % 2) for i in range(count)]


def test_an_object_a_callable_and_a_class(load: Load) -> None:
    pairs = Pairs(vectors())

    class Made(Pairs):
        def __init__(self) -> None:
            super().__init__(vectors())

    for value in (pairs, lambda: pairs, Made):
        dataset = load(value)
        assert dataset.inputs[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
        assert dataset.inputs.dtype == torch.float32
        assert dataset.labels.tolist() == [0, 1] * 3
        assert dataset.class_names == ("0", "1")
        assert dataset.domain_names == ("name",)


def test_streams_and_tensor_datasets(load: Load) -> None:
    assert load(Stream()).inputs[:, 1].tolist() == [0, 1, 2, 3, 4, 5]
    dataset = load(TensorDataset(torch.arange(8).view(4, 2), torch.tensor([0, 1, 1, 0])))
    assert dataset.inputs.dtype == torch.float32
    assert dataset.labels.tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize(
    "image",
    [
        torch.full((3, 4, 5), 255, dtype=torch.uint8),
        np.full((3, 4, 5), 255, np.uint8),
        Image.new("RGB", (5, 4), (255, 255, 255)),
    ],
)
def test_images_of_bytes_stay_bytes_and_are_normalised(load: Load, image: Any) -> None:
    dataset = load(Pairs([(image, 0), (image, 1)]))
    assert dataset.inputs.shape == (2, 3, 4, 5)
    assert dataset.inputs.dtype == torch.uint8
    batch = Examples(dataset, torch.arange(2)).batch(torch.arange(2)).inputs
    assert batch.unique().tolist() == pytest.approx([1.0])


def test_grey_pillow_images_get_a_channel(load: Load) -> None:
    assert load(Pairs([(Image.new("L", (5, 4)), 0), (Image.new("L", (5, 4)), 1)])).inputs.shape == (2, 1, 4, 5)


def test_bytes_that_are_no_image_become_numbers(load: Load) -> None:
    assert load(Pairs([(torch.ones(4, dtype=torch.uint8), 0), (torch.ones(4, dtype=torch.uint8), 1)])).inputs.dtype == torch.float32


@pytest.mark.parametrize("label", [1, np.int32(1), torch.tensor(1), torch.tensor([1]), np.array(1), True])
def test_labels_may_be_any_integer(load: Load, label: Any) -> None:
    dataset = load(Pairs([(torch.zeros(2), 0), (torch.zeros(2), label)]))
    assert dataset.labels.tolist() == [0, 1]
    assert dataset.labels.dtype == torch.int64


def test_names_of_classes_and_domains(load: Load) -> None:
    dataset = load(Pairs(vectors(), classes=["cat", "dog", "cow"], domains=["sea", "air", "sea", "air", "sea", "air"]))
    assert dataset.class_names == ("cat", "dog", "cow")
    assert dataset.domain_names == ("air", "sea")
    assert dataset.domains.tolist() == [1, 0] * 3


def test_domains_decide_how_it_is_dealt(load: Load) -> None:
    several = load(Pairs(vectors(40), domains=["a", "a", "b", "b"] * 10))
    assert [client.name for client in deal(several, None, DataOptions(), 0).clients] == ["a", "b"]
    single = load(Pairs(vectors(40)))
    assert len(deal(single, None, DataOptions(clients=3, alpha=10.0), 0).clients) == 3


def test_a_random_transform_is_drawn_once_from_the_seed(load: Load) -> None:
    class Noisy(Pairs):
        def __getitem__(self, index: int) -> Any:
            return torch.randn(2), index % 2

    before = torch.get_rng_state()
    assert torch.equal(load(Noisy(vectors())).inputs, load(Noisy(vectors())).inputs)
    assert torch.equal(before, torch.get_rng_state())


def _raising(*_: Any) -> Any:
    raise ValueError("bad\nthing")


class Broken(Pairs):
    def __getitem__(self, index: int) -> Any:
        return _raising()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "is of type int: it must be a torch Dataset, or a callable that returns one"),
        (lambda: [1], "is of type list: it must be"),
        (_raising, "cannot be made: ValueError: bad thing"),
        (lambda needed: None, "cannot be made: TypeError"),
        (Broken(vectors()), "cannot be read: ValueError: bad thing"),
        (Dataset(), "cannot be read: TypeError"),
        (Pairs([]), "is empty"),
        (Pairs([1]), r"example 0 is no pair \(input, label\)"),
        (Pairs([(torch.zeros(2), 0, 0)]), "example 0 is no pair"),
        (Pairs([(torch.zeros(2), 0), (torch.zeros(3), 1)]), r"input 1 is float32 of shape \(3,\), input 0 is float32 of shape \(2,\)"),
        (Pairs([("text", 0)]), "input 0 is of type str, which makes no tensor"),
        (Pairs([({}, 0)]), "input 0 is of type dict"),
        (Pairs([(torch.zeros(2), 0.5)]), "label 0 is 0.5: labels are integers from 0"),
        (Pairs([(torch.zeros(2), -1)]), "label 0 is -1"),
        (Pairs([(torch.zeros(2), "cat")]), "label 0 is 'cat'"),
        (Pairs([(torch.zeros(2), torch.zeros(2))]), "label 0 is tensor"),
        (Pairs([(torch.zeros(2), 0)] * 3), "holds one class only"),
        (Pairs(vectors(), classes=["cat"]), "names 1 classes, but holds the label 1"),
        (Pairs(vectors(), domains=["a", "b"]), "names 2 domains for 6 examples"),
    ],
    ids=itertools.count(),
)
def test_mistakes_are_one_line(load: Load, value: Any, message: str) -> None:
    with pytest.raises(UserError, match='^data set "own_module:name".*' + message) as refusal:
        load(value)
    assert "\n" not in str(refusal.value)
