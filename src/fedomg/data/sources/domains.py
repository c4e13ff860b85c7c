"""PACS, VLCS and OfficeHome, in the layouts in circulation.

- Folders, as DomainBed has them: `PACS/sketch/dog/1.png`.
- Folders with the parts in between, as Dassl has them: `VLCS/PASCAL/train/dog/1.jpg`.
- Split lists beside the pictures: `art_painting_train_kfold.txt`, `splits/voc2007_val.txt`, `splits/train_Art.txt`.

Domains and classes have the names of DomainBed, however their folders are spelled. A domain that is held out is tested as a whole,
whatever parts a copy divides it into.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from fedomg.core.errors import UserError
from fedomg.data.dataset import TRAIN, Dataset
from fedomg.data.listing import Listing, Picture, files_in, folders_in, to_dataset
from fedomg.data.sources import split_lists
from fedomg.data.sources.family import PARTS, Family, homes, picture_folders

WHOLE = "full"
"""A folder that some copies of VLCS have beside the parts: all pictures once more."""


def load(family: Family, root: Path, size: int, published_split: bool, cache: Path) -> Dataset:
    """`root` holds the folder of the set, or is that folder."""
    return to_dataset(find(family, root, published_split), size, cache)


def find(family: Family, root: Path, published_split: bool = True) -> Listing:
    """The pictures of all domains: those that lists name, where there are lists."""
    places = homes(family, root)
    for home in places:
        if listed := split_lists.find(family, home):
            return _listing(family, listed.root, listed.pictures, published_split, listed.left_out)
    for home in places:
        for place in picture_folders(home):
            folders = {domain: path for path in folders_in(place) if (domain := family.domain(path.name))}
            if folders:
                return _listing(family, place, list(_in_folders(family, place, folders)), published_split)
    looked = " or ".join(map(str, places))
    raise UserError(f'data set "{family.name}" is not in {looked}: no folder of a domain ({", ".join(family.domains)}), no split list')


def _listing(family: Family, root: Path, pictures: list[Picture], published_split: bool, left_out: tuple[str, ...] = ()) -> Listing:
    pictures.sort(key=lambda picture: (picture.domain, picture.class_name, picture.file))
    classes = family.classes or tuple(sorted({picture.class_name for picture in pictures}))
    divided = published_split and any(picture.part != TRAIN for picture in pictures)
    return Listing(root, tuple(pictures), family.domains, classes, divided, left_out)


def _in_folders(family: Family, place: Path, folders: Mapping[str, Path]) -> Iterator[Picture]:
    missing = [domain for domain in family.domains if domain not in folders]
    if missing:
        raise UserError(f'data set "{family.name}" lacks the folder of domain {" and ".join(missing)} in {place}; put it there')
    for domain, folder in folders.items():
        empty = True
        for part, classes in _parts(folder):
            for class_folder in folders_in(classes):
                class_name = family.class_name(class_folder.name)
                if class_name is None:
                    raise UserError(f'{class_folder}: "{class_folder.name}" is no class of {family.name} ({", ".join(family.classes)})')
                for path in files_in(class_folder):
                    yield Picture(path.relative_to(place).as_posix(), domain, class_name, part)
                    empty = False
        if empty:
            raise UserError(f"{folder} holds no images: expected {folder.name}/CLASS/IMAGE")


def _parts(folder: Path) -> list[tuple[int, Path]]:
    """The folders that hold the classes of a domain, and the part that each is."""
    inside = {path.name.lower(): path for path in folders_in(folder)}
    if not inside or not inside.keys() <= PARTS.keys() | {WHOLE}:
        return [(TRAIN, folder)]
    found = [(PARTS[name], path) for name, path in inside.items() if name != WHOLE]
    return found or [(TRAIN, inside[WHOLE])]
