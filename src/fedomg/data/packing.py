"""A federation as named tensors and plain values, for processes that share memory but not objects."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedomg.core.params import Tensors
from fedomg.data.dataset import TENSORS, Dataset
from fedomg.data.examples import Examples
from fedomg.data.federation import Client, Federation
from fedomg.data.mapped import MappedFile

NAMES = ("class_names", "domain_names", "mean", "std", "group_names", "skipped", "left_out", "made_from")
VALUES = ("window", "augmentation", "whole_target")


def pack(federation: Federation) -> tuple[dict[str, Any], Tensors]:
    """The tensors are those of the data set themselves, and the clients' rows in one; what is mapped from a file goes by its name."""
    dataset, everyone = federation.dataset, federation.everyone
    rows = [part.indices for client in everyone for part in (client.train, client.validation, client.test)]
    tensors = {name: getattr(dataset, name) for name in TENSORS if getattr(dataset, name) is not None}
    if dataset.file is not None:
        del tensors["inputs"]
    plain = {
        **{name: list(getattr(dataset, name)) for name in NAMES},
        **{name: getattr(dataset, name) for name in VALUES},
        "file": None if dataset.file is None else [str(dataset.file.path), list(dataset.file.shape)],
        "clients": [[client.id, client.name] for client in everyone],
        "rows": [len(part) for part in rows],
        "target": federation.target is not None,
    }
    return plain, {**tensors, "rows": torch.cat(rows)}


def unpack(plain: dict[str, Any], tensors: Tensors) -> Federation:
    fields: dict[str, Any] = {name: tuple(plain[name]) for name in NAMES}
    fields |= {name: plain[name] for name in VALUES}
    fields |= {name: tensors[name] for name in TENSORS if name in tensors}
    if plain["file"] is not None:
        path, shape = plain["file"]
        file = MappedFile(Path(path), tuple(shape))
        fields |= {"file": file, "inputs": file.open()}
    dataset = Dataset(**fields)
    rows = iter(tensors["rows"].split(plain["rows"]))
    clients = [_client(dataset, number, name, next(rows), next(rows), next(rows)) for number, name in plain["clients"]]
    target = clients.pop() if plain["target"] else None
    return Federation(dataset, tuple(clients), target)


def _client(dataset: Dataset, number: int, name: str, *rows: Tensor) -> Client:
    return Client(number, name, *(Examples(dataset, part) for part in rows))
