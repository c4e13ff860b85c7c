"""Any folder of images laid out as `domain/class/image`."""

from collections.abc import Iterator
from pathlib import Path

from fedomg.core.cache import cache_folder
from fedomg.core.errors import UserError
from fedomg.data.dataset import Dataset
from fedomg.data.listing import Listing, Picture, files_in, folders_in, to_dataset

LAYOUT = "expected ROOT/DOMAIN/CLASS/IMAGE"


def load(root: Path, size: int, cache: Path | None = None) -> Dataset:
    """Every image as RGB, resized to `size` x `size`; domains and classes are the sorted folder names.

    A class may be missing in some domains. Hidden files and files that are no images are passed over.
    """
    if size < 1:
        raise UserError(f"images cannot be resized to {size} pixels: choose a size of 1 or more")
    pictures = tuple(_find(root))
    domain_names = tuple(sorted({picture.domain for picture in pictures}))
    class_names = tuple(sorted({picture.class_name for picture in pictures}))
    return to_dataset(Listing(root, pictures, domain_names, class_names), size, cache or cache_folder())


def _find(root: Path) -> Iterator[Picture]:
    """All images in the order of their paths; a domain without any is an error."""
    domains = folders_in(root)
    if not domains:
        raise UserError(f"data folder {root} holds no domain folders: {LAYOUT}")
    for domain in domains:
        empty = True
        for class_folder in folders_in(domain):
            for path in files_in(class_folder):
                yield Picture(path.relative_to(root).as_posix(), domain.name, class_folder.name)
                empty = False
        if empty:
            raise UserError(f'domain "{domain.name}" of {root} holds no images: {LAYOUT}; add images or remove the folder')
