"""Counts what would make the processor wait for an accelerator."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CALLS = ("item", "cpu", "cuda", "numpy", "__array__", "tolist", "__bool__", "__float__", "__int__", "__index__", "__contains__")
OPERATIONS = (
    # A number leaves the device, or the shape of the result depends on the numbers.
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount", "repeat_interleave"),
    *("_unique", "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive"),
)


@contextmanager
def synchronisations() -> Iterator[list[str]]:
    """Inside, the list fills with the names of the calls and operations that synchronise."""
    found: list[str] = []
    with _Operations(found), _Calls(found):
        yield found


class _Calls(TorchFunctionMode):
    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in CALLS or (name == "to" and _names_a_device(args[1:], kwargs or {})):
            self._found.append(name)
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    """What is below Python, the backward pass and optimizers among it."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        name = func.overloadpacket.__name__
        if name in OPERATIONS or (name == "index" and _masks(args[1])):
            self._found.append(name)
        return func(*args, **(kwargs or {}))


def _masks(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _names_a_device(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if kwargs.get("non_blocking"):
        return False
    return any(isinstance(value, torch.device | str | Tensor) for value in (*args, *kwargs.values()))
