"""Fetches a published data set through torchvision, which knows mirrors and checksums. Only where the user asks for it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedomg.core.errors import UserError
from fedomg.core.torchvision_compat import torchvision


def images(class_name: str, **arguments: Any) -> Callable[[Path], None]:
    """For MNIST and its relatives."""

    def fetch(root: Path) -> None:
        _attempt(class_name, root, lambda: getattr(torchvision("datasets"), class_name)(root, download=True, **arguments))

    return fetch


def archive(class_name: str) -> Callable[[Path], None]:
    """For CIFAR: only unpacked, since torchvision's own reader trusts pickles."""

    def fetch(root: Path) -> None:
        published, utils = getattr(torchvision("datasets"), class_name), torchvision("datasets.utils")
        _attempt(
            class_name,
            root,
            lambda: utils.download_and_extract_archive(published.url, root, filename=published.filename, md5=published.tgz_md5),
        )

    return fetch


def _attempt(name: str, root: Path, fetch: Callable[[], Any]) -> None:
    try:
        fetch()
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{name} cannot be downloaded to {root} ({reason}): the network must allow it, or put the files there") from None
