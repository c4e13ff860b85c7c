"""CelebA, as WILDS lays it out or with the original text annotations: who is blond, in groups by hair and gender.

The domain is the gender, which goes with the hair in the training part: a blond man is rare. Training, validation and test part are
those that are published. Pictures stay whole and keep their proportions, 178 x 218; a square from the middle is what is tested.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from fedomg.core.errors import UserError
from fedomg.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from fedomg.data.listing import IMAGENET_MEAN, IMAGENET_STD
from fedomg.data.pictures import Size, load_pictures
from fedomg.data.sources.files import read

TOTAL = 202_599
DOMAINS = ("female", "male")
CLASSES = ("not blond", "blond")
GROUPS = tuple(f"{domain}, {hair}" for domain in DOMAINS for hair in CLASSES)
WIDTH, HEIGHT = 178, 218

FOLDERS = (".", "celebA_v1.0", "celeba", "CelebA")
PICTURES = ("img_align_celeba", "img_align_celeba/img_align_celeba", "Img/img_align_celeba")
ATTRIBUTES = ("list_attr_celeba.csv", "list_attr_celeba.txt", "Anno/list_attr_celeba.txt")
PARTITION = ("list_eval_partition.csv", "list_eval_partition.txt", "Eval/list_eval_partition.txt")
PARTS = {"0": TRAIN, "1": VALIDATION, "2": TEST}
SIGNS = {"1": 1, "-1": 0}


class Face(NamedTuple):
    file: str
    blond: int
    male: int
    part: int


def load(root: Path, size: int, cache: Path) -> Dataset:
    """`root` holds the folder of the set, or is that folder."""
    home, attributes, partition = locate(root)
    pictures = next((home / name for name in PICTURES if any((home / name).glob("*.jpg"))), home / PICTURES[0])
    faces = list(_faces(attributes, partition))
    _require_pictures(pictures, faces, attributes)
    inputs, file, broken = load_pictures(pictures, [face.file for face in faces], Size(size, round(size * HEIGHT / WIDTH)), cache)
    kept = torch.ones(len(faces), dtype=torch.bool)
    kept[list(broken)] = False
    labels, domains, split = (torch.tensor(column)[kept] for column in list(zip(*faces, strict=True))[1:])
    return Dataset(
        inputs=inputs,
        labels=labels,
        domains=domains,
        class_names=CLASSES,
        domain_names=DOMAINS,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        split=split,
        groups=len(CLASSES) * domains + labels,
        group_names=GROUPS,
        skipped=tuple(faces[position].file for position in broken),
        file=file,
        window=size,
    )


def locate(root: Path) -> tuple[Path, Path, Path]:
    """The folder of the set, and its two lists, which are there."""
    home = next((root / name for name in FOLDERS if any((root / name / list_).is_file() for list_ in ATTRIBUTES)), root)
    return home, _present(home, ATTRIBUTES), _present(home, PARTITION)


def _present(home: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (home / name).is_file():
            return home / name
    raise UserError(f'data set "celeba" lacks {names[0]} (or {names[1]}) in {home}: put it there')


def _faces(attributes: Path, partition: Path) -> Iterator[Face]:
    parts = _columns(partition, {"partition": PARTS})
    for file, (blond, male) in sorted(_columns(attributes, {"Blond_Hair": SIGNS, "Male": SIGNS}).items()):
        if file not in parts:
            raise UserError(f"{partition} does not say to which part {file} belongs, which {attributes} names")
        yield Face(file, blond, male, *parts[file])


def _columns(path: Path, wanted: Mapping[str, Mapping[str, int]]) -> dict[str, list[int]]:
    """By file, the values of the wanted columns, of which each may take certain values only."""
    header, rows, first = _rows(path)
    places = [header.index(name) if name in header else -1 for name in wanted]
    if -1 in places:
        raise UserError(f"{path} has no column {list(wanted)[places.index(-1)]}: it is no file of CelebA")
    found: dict[str, list[int]] = {}
    for number, cells in enumerate(rows, first):
        if len(cells) != len(header):
            raise UserError(f"{path}, line {number}: {len(cells)} values where the header names {len(header)}")
        try:
            found[cells[0]] = [values[cells[place]] for values, place in zip(wanted.values(), places, strict=True)]
        except KeyError as error:
            raise UserError(f"{path}, line {number}: {error} is no value of {' or '.join(wanted)}") from None
    return found


def _rows(path: Path) -> tuple[list[str], list[list[str]], int]:
    """The header, the rows, and the line of the first row. The original lists have no header, or a count before it."""
    lines = read(path).decode(errors="replace").splitlines()
    comma = path.suffix == ".csv"
    header, first = ["image_id", "partition"], 0
    if comma and lines:
        header, first = lines[0].split(","), 1
    elif len(lines) > 1 and lines[0].strip().isdecimal():
        header, first = ["image_id", *lines[1].split()], 2
    return header, [line.split("," if comma else None) for line in lines[first:] if line.strip()], first + 1


def _require_pictures(folder: Path, faces: list[Face], attributes: Path) -> None:
    if not faces:
        raise UserError(f"{attributes} names no picture")
    missing = [face.file for face in faces if not (folder / face.file).is_file()]
    if missing:
        raise UserError(f'data set "celeba" lacks {len(missing):,} of {len(faces):,} pictures in {folder}, the first is {missing[0]}')
