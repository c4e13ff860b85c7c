"""ImageNet weights: the files that torchvision publishes, read from the disk alone."""

import hashlib
import pickle
import re
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from fedomg.core.errors import UserError
from fedomg.core.torchvision_compat import torchvision

NONE, IMAGENET = "none", "imagenet"
CLASSIFIERS = {"mobilenet_v2": "classifier.", "resnet18": "fc.", "resnet50": "fc."}
"""The models that have weights, and how the names of their ImageNet classifier begin, which the head replaces."""

_HASH = re.compile(r"-([0-9a-f]{8,64})\.pth$")
_UNREADABLE = (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError)


def load_pretrained(name: str, body: nn.Module, weights: str) -> None:
    """Fills the body of a model; `weights` is "imagenet" for torchvision's cache, or a file, or a folder that holds one."""
    path = find(name, weights)
    state = {key: value for key, value in _read(path).items() if not key.startswith(CLASSIFIERS[name])}
    try:
        missing, unexpected = body.load_state_dict(state, strict=False)
    except RuntimeError as error:  # wrong shapes
        raise UserError(f'{path} does not fit model "{name}": {_first_line(error)}') from None
    for what, keys in (("lacks", missing), ("has more than the model, such as", unexpected)):
        if keys:
            raise UserError(f'{path} does not fit model "{name}": it {what} {keys[0]}')


def find(name: str, weights: str) -> Path:
    """The file, checked against the hash in its name where it has one, as torchvision's have."""
    place = _cache() if weights == IMAGENET else Path(weights).expanduser()
    urls = [member.url for member in torchvision("models").get_model_weights(name)]
    files = {url.rpartition("/")[2]: url for url in urls}
    found = [place] if place.is_file() else [place / file for file in files if (place / file).is_file()]
    if not found:
        file, url = next(iter(files.items()))
        where = f"the folder {place} holds no {' or '.join(files)}" if place.is_dir() else f"{place} does not exist"
        raise UserError(
            f'the ImageNet weights of model "{name}" are missing: {where}; fetch {url} and set model.weights to the file {file}, '
            f'or start from random weights with model.weights = "{NONE}"'
        )
    _check_hash(found[0], found[0].stat().st_mtime_ns)
    return found[0]


def _cache() -> Path:
    return Path(torch.hub.get_dir()) / "checkpoints"


@cache
def _check_hash(path: Path, changed: int) -> None:
    """Once a process, unless the file changes."""
    named = _HASH.search(path.name)
    if named is None:
        return
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"the weights {path} cannot be read: {error.strerror}") from None
    if not digest.startswith(named[1]):
        raise UserError(f"the weights {path} are damaged: their SHA-256 does not begin with {named[1]}; fetch the file again")


def _read(path: Path) -> dict[str, Tensor]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise UserError(f"{path} is no file of weights: {_first_line(error)}") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} is no file of weights: it holds something other than named tensors")
    return state


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    specific = [line for line in lines if line.startswith("size mismatch")]
    return (specific or lines or [type(error).__name__])[0]
