"""The embedded emoji: what is in the file, that its split divides no emoji, and that its licences come along."""

import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Hashable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedomg.core.errors import UserError
from fedomg.data.dataset import TEST, TRAIN, Dataset
from fedomg.data.sources import emoji

DOMAINS = ("noto", "twemoji", "openmoji", "line", "fluent3d", "contrast")
CLASSES = ("Activities", "Animals", "Food", "Objects", "People", "Smileys", "Symbols", "Travel")
PERSONS = {"1f468", "1f469", "1f9d1"}
SIGNS = {"2640", "2642", "1f9b0", "1f9b1", "1f9b2", "1f9b3"}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return emoji.load()


@pytest.fixture(scope="module")
def shown() -> tuple[emoji.Emoji, ...]:
    return emoji.examples()


def split_of(dataset: Dataset) -> torch.Tensor:
    assert dataset.split is not None
    return dataset.split


def parts_by(dataset: Dataset, shown: tuple[emoji.Emoji, ...], key: Callable[[emoji.Emoji], Hashable]) -> dict[Hashable, set[int]]:
    """For every value of `key`, the parts of the split in which it occurs, in whichever domain."""
    parts: dict[Hashable, set[int]] = defaultdict(set)
    for one, part in zip(shown, split_of(dataset).tolist(), strict=True):
        parts[key(one)].add(part)
    return parts


def test_shapes_types_and_names(dataset: Dataset, shown: tuple[emoji.Emoji, ...]) -> None:
    count = len(shown)
    assert dataset.inputs.shape == (count, 3, 32, 32)
    assert dataset.inputs.dtype == torch.uint8
    assert dataset.labels.shape == dataset.domains.shape == split_of(dataset).shape == (count,)
    assert {dataset.labels.dtype, dataset.domains.dtype, split_of(dataset).dtype} == {torch.int64}
    assert dataset.domain_names == DOMAINS
    assert dataset.class_names == CLASSES
    assert dataset.mean == dataset.std == (0.5, 0.5, 0.5)
    assert dataset.skipped == ()


def test_every_domain_has_the_same_emoji_in_the_same_order(dataset: Dataset, shown: tuple[emoji.Emoji, ...]) -> None:
    per_domain = len(shown) // len(DOMAINS)
    assert per_domain >= 1300
    assert len({one.code for one in shown}) == per_domain
    assert dataset.domains.bincount().tolist() == [per_domain] * len(DOMAINS)
    for domain in range(len(DOMAINS)):
        rows = slice(domain * per_domain, (domain + 1) * per_domain)
        assert shown[rows] == shown[:per_domain]
        assert torch.equal(dataset.labels[rows], dataset.labels[:per_domain])
        assert torch.equal(split_of(dataset)[rows], split_of(dataset)[:per_domain])


def test_every_class_is_in_both_parts_of_every_domain_about_three_to_one(dataset: Dataset) -> None:
    for domain in range(len(DOMAINS)):
        here = dataset.domains == domain
        train = dataset.labels[here & (split_of(dataset) == TRAIN)].bincount(minlength=len(CLASSES))
        test = dataset.labels[here & (split_of(dataset) == TEST)].bincount(minlength=len(CLASSES))
        share = test / (train + test)
        assert bool(((share > 0.2) & (share < 0.3)).all()), dict(zip(CLASSES, share.tolist(), strict=True))


@pytest.mark.parametrize("key", ["code", "name", "group"])
def test_no_emoji_and_no_group_of_variants_is_in_both_parts(dataset: Dataset, shown: tuple[emoji.Emoji, ...], key: str) -> None:
    assert all(len(parts) == 1 for parts in parts_by(dataset, shown, lambda one: getattr(one, key)).values())


def test_forms_of_one_person_stay_together(dataset: Dataset, shown: tuple[emoji.Emoji, ...]) -> None:
    def without_gender_and_hair(one: emoji.Emoji) -> str:
        return "-".join("person" if part in PERSONS else part for part in one.code.split("-") if part not in SIGNS)

    parts = parts_by(dataset, shown, without_gender_and_hair)
    assert len(parts) < len({one.code for one in shown})
    assert [code for code, found in parts.items() if len(found) > 1] == []


@pytest.mark.parametrize(
    "names",
    [
        ("one o’clock", "twelve o’clock", "six-thirty"),
        ("keycap: 0", "keycap: 9"),
        ("person running", "woman running", "man running"),
        ("man: bald", "woman: red hair", "person: beard"),
        ("green book", "blue book"),
        ("red circle", "blue square"),
        ("red heart", "purple heart"),
    ],
)
def test_known_variants_are_one_group(shown: tuple[emoji.Emoji, ...], names: tuple[str, ...]) -> None:
    group = {one.name: one.group for one in shown}
    assert len({group[name] for name in names}) == 1


def test_no_test_picture_looks_like_a_training_picture_of_its_domain(dataset: Dataset) -> None:
    for domain in range(len(DOMAINS)):
        here = dataset.domains == domain
        pictures = dataset.inputs.flatten(1).double()
        train, test = pictures[here & (split_of(dataset) == TRAIN)], pictures[here & (split_of(dataset) == TEST)]
        distance = torch.cdist(test, train) / train.shape[1] ** 0.5
        assert distance.min() > 8, DOMAINS[domain]  # grey levels, root mean square


def test_pictures_are_on_white_and_show_something(dataset: Dataset) -> None:
    corners = dataset.inputs[:, :, [0, 0, -1, -1], [0, -1, 0, -1]].flatten(1).amin(dim=1)
    for domain in range(len(DOMAINS)):
        here = dataset.domains == domain
        assert (corners[here] >= 250).float().mean() > 0.75, DOMAINS[domain]  # some drawings fill their square
        darkest = dataset.inputs[here].flatten(1).min(dim=1).values
        assert (darkest < 200).float().mean() > 0.99, DOMAINS[domain]


def test_line_and_contrast_have_no_colour_and_the_others_have(dataset: Dataset) -> None:
    spread = (dataset.inputs.amax(dim=1) - dataset.inputs.amin(dim=1)).float().mean(dim=(1, 2))
    means = {name: float(spread[dataset.domains == domain].mean()) for domain, name in enumerate(DOMAINS)}
    assert {name for name, mean in means.items() if mean < 1} == {"line", "contrast"}


def test_the_file_is_small_fast_and_free_of_pickle() -> None:
    assert emoji.FILE.stat().st_size <= 5_000_000
    with zipfile.ZipFile(emoji.FILE) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                assert not np.lib.format.read_array(member, allow_pickle=False).dtype.hasobject
    start = time.perf_counter()
    emoji.load()
    assert time.perf_counter() - start < 3  # a quarter of a second on an idle machine


def test_each_artwork_comes_with_its_licence_and_attribution() -> None:
    folder = emoji.FILE.parent / "licenses"
    attribution = (folder / "ATTRIBUTION.md").read_text("utf-8")
    texts = {
        "noto": ("noto-Apache-2.0.txt", "Apache License"),
        "twemoji": ("twemoji-CC-BY-4.0.txt", "Attribution 4.0 International"),
        "openmoji": ("openmoji-CC-BY-SA-4.0.txt", "Attribution-ShareAlike 4.0 International"),
        "line": ("openmoji-CC-BY-SA-4.0.txt", "Attribution-ShareAlike 4.0 International"),
        "fluent3d": ("fluent-MIT.txt", "Microsoft Corporation"),
        "contrast": ("fluent-MIT.txt", "Microsoft Corporation"),
    }
    assert tuple(texts) == DOMAINS
    for domain, (name, phrase) in texts.items():
        assert phrase in (folder / name).read_text("utf-8")
        row = next(line for line in attribution.splitlines() if line.startswith(f"| `{domain}` |"))
        assert name in row


def test_a_missing_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^the embedded data set .*gone\.npz is missing: install fedomg again[^\n]*$"):
        emoji.load(tmp_path / "gone.npz")


def damaged(content: bytes, kind: str) -> bytes:
    if kind == "truncated":
        return content[: len(content) // 2]
    if kind == "no archive":
        return b"not a zip file"
    if kind == "empty":
        return b""
    middle = len(content) // 4
    return content[:middle] + bytes(64) + content[middle + 64 :]


@pytest.mark.parametrize("kind", ["truncated", "no archive", "empty", "altered"])
def test_a_damaged_file_is_one_clear_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "emoji.npz"
    path.write_bytes(damaged(emoji.FILE.read_bytes(), kind))
    with pytest.raises(UserError, match=r"^the embedded data set [^\n]* is damaged [^\n]*: install fedomg again[^\n]*$"):
        emoji.load(path)


def test_a_file_that_lacks_an_array_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "emoji.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.npy", b"")
    with pytest.raises(UserError, match="is damaged"):
        emoji.load(path)


def test_a_pickled_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "emoji.npz"
    np.savez(path, indices=np.asarray([{"a": 1}], dtype=object))
    with pytest.raises(UserError, match="is damaged"):
        emoji.load(path)
