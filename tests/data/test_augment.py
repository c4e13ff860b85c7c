"""Augmentation of batches, against torchvision's transforms of single pictures."""

from typing import get_args

import pytest
import torch
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.rng import generator
from fedomg.core.torchvision_compat import torchvision
from fedomg.data import colour
from fedomg.data.augment import AUGMENTATIONS, CropAndColour, Jitter, _boxes, resample
from fedomg.data.catalogue import load_dataset
from fedomg.data.dataset import Dataset
from fedomg.data.examples import Examples
from fedomg.data.options import Augmentation, DataOptions

SIDE = 24


def pictures(count: int = 6, height: int = SIDE, width: int = SIDE) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("change", "name", "amounts"),
    [
        (colour.brightness, "adjust_brightness", (0.6, 1.0, 1.4)),
        (colour.contrast, "adjust_contrast", (0.6, 1.0, 1.4)),
        (colour.saturation, "adjust_saturation", (0.0, 1.0, 1.4)),
        (colour.hue, "adjust_hue", (-0.4, 0.0, 0.3)),
    ],
)
def test_colours_change_as_in_torchvision(change: object, name: str, amounts: tuple[float, ...]) -> None:
    reference = getattr(torchvision("transforms.functional"), name)
    batch = pictures(3)
    batch[0, :, 0, 0] = 0.5  # grey has no hue
    found = change(batch, torch.tensor(amounts).view(-1, 1, 1, 1))  # type: ignore[operator]
    for picture, amount, changed in zip(batch, amounts, found, strict=True):
        assert torch.allclose(changed, reference(picture, amount), atol=2e-5)


def test_crops_are_resized_as_in_torchvision() -> None:
    crop = torchvision("transforms.functional").resized_crop
    batch = pictures(2)
    boxes = torch.tensor([[2.0, 3.0, 15.0, 20.0], [0.0, 0.0, 24.0, 24.0]])
    found = resample(batch, boxes, torch.tensor([False, True]), SIDE)
    assert torch.allclose(found[0], crop(batch[0], 2, 3, 15, 20, [SIDE, SIDE], antialias=False), atol=1e-5)
    assert torch.allclose(found[1], batch[1].flip(-1), atol=1e-5)


def test_boxes_have_the_published_areas_and_proportions() -> None:
    boxes = _boxes(4000, 96, 96, (0.7, 1.0), (3 / 4, 4 / 3), generator(0, "boxes"))
    top, left, tall, wide = boxes.unbind(dim=1)
    assert bool(((top >= 0) & (left >= 0) & (top + tall <= 96) & (left + wide <= 96)).all())
    assert bool((boxes == boxes.round()).all())
    area = tall * wide / 96**2
    assert 0.69 < float(area.min()) < 0.71
    assert 0.99 < float(area.max()) <= 1.0
    assert 0.72 < float((wide / tall).min()) < 0.8
    assert float((wide / tall).log().mean().abs()) < 0.02
    assert float((left / (96 - wide).clamp(min=1)).mean()) == pytest.approx(0.5, abs=0.05)


def test_a_picture_that_admits_no_box_is_cut_in_the_middle() -> None:
    boxes = _boxes(3, 10, 40, (0.7, 1.0), (3 / 4, 4 / 3), generator(0, "boxes"))
    assert boxes.tolist() == [[0.0, 13.0, 10.0, 13.0]] * 3


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_they_keep_the_range_and_give_the_size(name: Augmentation) -> None:
    found = AUGMENTATIONS[name](pictures(), SIDE, generator(0, name))
    assert found.shape == (6, 3, SIDE, SIDE)
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert torch.equal(found, AUGMENTATIONS[name](pictures(), SIDE, generator(0, name)))
    assert not torch.equal(found, AUGMENTATIONS[name](pictures(), SIDE, generator(1, name)))


def test_every_name_in_the_configuration_is_known() -> None:
    assert set(get_args(Augmentation)) == {"none", *AUGMENTATIONS}


def test_jitter_of_nothing_is_nothing() -> None:
    assert torch.allclose(Jitter(0, 0, 0, 0)(pictures(), generator(0, "jitter")), pictures(), atol=1e-5)


def test_a_tenth_becomes_grey_and_half_is_mirrored() -> None:
    batch = torch.zeros(2000, 3, 2, 2)
    batch[:, 0, :, 0] = 1.0  # red on the left
    found = CropAndColour(grey=0.1, scale=(1.0, 1.0), ratio=(1.0, 1.0))(batch, 2, generator(0, "grey"))
    greys = (found[:, 0] == found[:, 1]).all(dim=(1, 2))
    assert float(greys.float().mean()) == pytest.approx(0.1, abs=0.03)
    assert float((found[:, 0, 0, 1] > 0.1).float().mean()) == pytest.approx(0.5, abs=0.04)


def _examples(augmentation: Augmentation, height: int = SIDE, window: int | None = None) -> Examples:
    inputs = (255 * pictures(4, height)).byte()
    labels = torch.arange(4) % 2
    dataset = Dataset(inputs, labels, labels, ("a", "b"), ("x", "y"), (0.5,) * 3, (0.5,) * 3, augmentation=augmentation, window=window)
    return Examples(dataset, torch.arange(4))


def test_only_who_brings_a_generator_gets_augmented_pictures() -> None:
    examples, everything = _examples("feddg-ga"), torch.arange(4)
    plain = examples.batch(everything).inputs
    assert torch.equal(plain, _examples("none").batch(everything, generator(0, "x")).inputs)
    assert not torch.equal(plain, examples.batch(everything, generator(0, "x")).inputs)
    assert torch.equal(next(examples.in_order(4)).inputs, plain)
    assert examples.batch(everything, generator(0, "x")).inputs.is_contiguous(memory_format=torch.channels_last)


def test_of_a_tall_picture_the_middle_is_seen_and_crops_come_from_all_of_it() -> None:
    examples = _examples("celeba", height=30, window=SIDE)
    assert examples.dataset.shape == (3, SIDE, SIDE)
    whole = examples.dataset.inputs.float() / 255
    assert torch.allclose(examples.batch(torch.arange(4)).inputs, whole[:, :, 3:27] * 2 - 1, atol=1e-5)
    assert examples.batch(torch.arange(4), generator(0, "x")).inputs.shape == (4, 3, SIDE, SIDE)


def test_what_cannot_be_augmented_is_refused() -> None:
    with pytest.raises(UserError, match=r'data\.augment = "feddg-ga" needs square colour pictures'):
        load_dataset("rect4", DataOptions(augment="feddg-ga"), seed=0)
