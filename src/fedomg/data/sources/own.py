"""A data set of the user's own: any torch `Dataset` of (input, label) pairs, named by its import path."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from fedomg.core.errors import UserError
from fedomg.core.imports import import_object, reason
from fedomg.core.rng import seeded_global_generator
from fedomg.data.dataset import Dataset

MOST_CLASSES = 10**6


def load(path: str, seed: int) -> Dataset:
    """Reads every pair once. Images of bytes stay bytes, every other input becomes float32.

    The data set may have `classes`, the names of its classes, and `domains`, the name of the domain of each example.
    """
    with seeded_global_generator(seed, "data set"):  # a random transform is drawn once
        source = _open(path)
        pairs = [_pair(path, index, pair) for index, pair in enumerate(_pairs(path, source))]
    if not pairs:
        raise UserError(f'data set "{path}" is empty')
    inputs, labels = _stack(path, [x for x, _ in pairs]), torch.tensor([label for _, label in pairs])
    domain_names, domains = _domains(path, source, len(labels))
    depth = inputs.shape[1] if inputs.dtype == torch.uint8 else 0
    return Dataset(
        inputs=inputs,
        labels=labels,
        domains=domains,
        class_names=_class_names(path, source, labels),
        domain_names=domain_names,
        mean=(0.5,) * depth,
        std=(0.5,) * depth,
    )


def _open(path: str) -> TorchDataset[Any]:
    found = import_object("data set", path)
    if callable(found) and not isinstance(found, TorchDataset):
        try:
            found = found()
        except UserError:
            raise
        except Exception as error:  # whatever the user's own code raises
            raise UserError(f'data set "{path}" cannot be made: {reason(error)}') from error
    if not isinstance(found, TorchDataset):
        raise UserError(f'data set "{path}" is of type {type(found).__name__}: it must be a torch Dataset, or a callable that returns one')
    return found


def _pairs(path: str, source: TorchDataset[Any]) -> Iterator[Any]:
    try:
        if isinstance(source, IterableDataset):
            yield from source
        else:
            yield from (source[index] for index in range(len(source)))  # type: ignore[arg-type]  # most have a length
    except Exception as error:  # likewise
        raise UserError(f'data set "{path}" cannot be read: {reason(error)}') from error


def _pair(path: str, index: int, pair: Any) -> tuple[Tensor, int]:
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise UserError(f'data set "{path}": example {index} is no pair (input, label)')
    return _input(path, index, pair[0]), _label(path, index, pair[1])


def _input(path: str, index: int, value: Any) -> Tensor:
    """Tensors and arrays as they are; pictures with their channels first."""
    if isinstance(value, Tensor):
        found = value.detach().cpu()
    else:
        try:
            array = np.array(value)
            if hasattr(value, "getbands"):  # a Pillow image
                array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
            found = torch.from_numpy(array)
        except (TypeError, ValueError):
            raise UserError(f'data set "{path}": input {index} is of type {type(value).__name__}, which makes no tensor') from None
    if found.is_complex():
        raise UserError(f'data set "{path}": input {index} is complex: only real numbers can be learned from')
    return found if found.dtype == torch.uint8 and found.ndim == 3 else found.to(torch.float32)


def _label(path: str, index: int, value: Any) -> int:
    single = (isinstance(value, Tensor) and value.numel() == 1) or (isinstance(value, np.ndarray | np.generic) and value.size == 1)
    number = value.item() if single else value
    if not isinstance(number, int) or number < 0:
        raise UserError(f'data set "{path}": label {index} is {value!r}: labels are integers from 0')
    if number >= MOST_CLASSES:
        raise UserError(f'data set "{path}": label {index} is {number}: there can be {MOST_CLASSES:,} classes at most, numbered from 0')
    return int(number)


def _stack(path: str, inputs: list[Tensor]) -> Tensor:
    first = inputs[0]
    for index, found in enumerate(inputs):
        if found.shape != first.shape or found.dtype != first.dtype:
            raise UserError(
                f'data set "{path}": input {index} is {_kind(found)}, input 0 is {_kind(first)}; bring all to the same shape and type'
            )
    return torch.stack(inputs)


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"


def _class_names(path: str, source: Any, labels: Tensor) -> tuple[str, ...]:
    highest = int(labels.max())
    names = _names(path, source, "classes")
    if names is None:
        names = tuple(map(str, range(highest + 1)))
    if len(names) <= highest:
        raise UserError(f'data set "{path}" names {len(names)} classes, but holds the label {highest}')
    if len(names) < 2:
        raise UserError(f'data set "{path}" holds one class only, and nothing can be learned from that')
    return names


def _names(path: str, source: Any, attribute: str) -> tuple[str, ...] | None:
    """What the data set names its classes or domains, where it names them."""
    names = getattr(source, attribute, None)
    if names is None:
        return None
    if isinstance(names, str) or not hasattr(names, "__len__") or not hasattr(names, "__iter__"):
        raise UserError(f'data set "{path}": its {attribute} are {names!r}: they must be a list of names')
    return tuple(map(str, names))


def _domains(path: str, source: Any, count: int) -> tuple[tuple[str, ...], Tensor]:
    of_each = _names(path, source, "domains")
    if of_each is None:
        return (path.rpartition(":")[2],), torch.zeros(count, dtype=torch.int64)
    if len(of_each) != count:
        raise UserError(f'data set "{path}" names {len(of_each)} domains for {count} examples: name the domain of each example')
    names = sorted(set(of_each))
    number = {name: index for index, name in enumerate(names)}
    return tuple(names), torch.tensor([number[domain] for domain in of_each])
