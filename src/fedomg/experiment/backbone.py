"""The frozen backbone: what the body makes of every example is computed once, kept on disk, and takes the place of the inputs."""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fedomg.core.cache import entry
from fedomg.core.errors import UserError
from fedomg.core.params import FlatModel, Group
from fedomg.core.threads import one_thread
from fedomg.data.dataset import Dataset
from fedomg.data.examples import Examples

BATCH_SIZE = 64
CHUNK = 2**24
FILE, NAME = "features.safetensors", "features"


Watch = Callable[[str, int, int], None]
"""Is told what takes long, how far it has come, and how far it has to go."""


def unwatched(what: str, done: int, total: int) -> None:
    """Nobody is told."""


def with_features(dataset: Dataset, body: nn.Module, device: torch.device, workers: int, cache: Path, watch: Watch) -> Dataset:
    """The data set with the features of this body, in evaluation mode, as its inputs."""
    body = FlatModel(body.eval().to(device), lambda name: Group.FROZEN).module  # as it stands in memory where whole models train
    examples = Examples(dataset, torch.arange(len(dataset.labels)))
    with ThreadPoolExecutor(workers) as pool, one_thread():
        key = _key(dataset, body, _features(examples, body, device, _probe(len(examples))), pool)

        def make(folder: Path) -> None:
            save_file({NAME: _all_features(examples, body, device, pool, watch)}, folder / FILE)

        place = entry(cache / "features", key, make)
    try:
        features = load_file(place / FILE)[NAME]
    except (OSError, KeyError, SafetensorError):
        raise UserError(f"{place} is damaged: remove the folder, and it is made anew") from None
    plain: dict[str, Any] = {"mean": (), "std": (), "file": None, "window": None, "augmentation": "none"}
    return replace(dataset, inputs=features, made_from=dataset.shape, **plain)


def _probe(examples: int) -> Tensor:
    """A batch from all over the data set."""
    return torch.linspace(0, examples - 1, min(examples, BATCH_SIZE)).long()


def _key(dataset: Dataset, body: nn.Module, probe: Tensor, pool: ThreadPoolExecutor) -> str:
    """Names the content of the inputs and what is made of them.

    The features of a few examples stand for the code of the body, which may be the user's own, and for the machine's arithmetic.
    """
    found = hashlib.sha256(f"{tuple(dataset.inputs.shape)} {dataset.inputs.dtype} {dataset.mean} {dataset.std}".encode())
    for tensor in (probe, *body.state_dict().values()):
        found.update(_bytes(tensor.cpu()))
    for digest in pool.map(lambda chunk: hashlib.sha256(_bytes(chunk)).digest(), _chunks(dataset.inputs)):
        found.update(digest)
    return found.hexdigest()[:40]


def _chunks(inputs: Tensor) -> Iterator[Tensor]:
    """Rows, so many at a time that hashing them is worth a thread."""
    size = max(1, inputs[:1].numel() * inputs.element_size())
    yield from inputs.split(max(1, CHUNK // size))


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().data


def _all_features(examples: Examples, body: nn.Module, device: torch.device, pool: ThreadPoolExecutor, watch: Watch) -> Tensor:
    """Batches in several threads, each on one: the same bits however many there are."""
    batches = torch.arange(len(examples)).split(BATCH_SIZE)
    made, parts = 0, []
    try:
        for part in pool.map(partial(_features, examples, body, device), batches):
            parts.append(part)
            made += len(part)
            watch("features", made, len(examples))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    return torch.cat(parts)


def _features(examples: Examples, body: nn.Module, device: torch.device, positions: Tensor) -> Tensor:
    with torch.no_grad():
        features: Tensor = body(examples.batch(positions).inputs.to(device))
    return features.contiguous().cpu()
