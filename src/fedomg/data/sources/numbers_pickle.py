"""Reads pickles of plain numbers without trusting them.

A pickle is a program: it may name any function and call it. Here the few names that numbers and numpy arrays need lead to inert
stand-ins, every other name is refused, and nothing of numpy is called before the whole file has been read.
"""

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedomg.core.errors import UserError
from fedomg.data.sources import files

TYPES = frozenset(f"{kind}{size}" for kind, sizes in (("i", "1248"), ("u", "1248"), ("f", "48"), ("b", "1")) for size in sizes)


def load(path: Path) -> dict[str, Any]:
    """The dictionary in the file, with text as keys and numpy arrays as such."""
    content = files.read(path)
    try:
        found = _plain(_Unpickler(io.BytesIO(content), encoding="bytes").load())
    except _RefusedError as refused:
        raise UserError(
            f"{path} is refused: it asks for {refused}, and a data file may hold nothing but dicts, lists, text and numbers; fetch it again"
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error}): fetch it again") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no dictionary: it is no batch of images; fetch it again")
    return found


class _RefusedError(Exception):
    """Names what a pickle asked for."""


class _Inert:
    """What a pickle may call. Setting a state is accepted on objects and fails on the class itself, which so cannot be changed."""

    def __setstate__(self, state: Any) -> None:
        pass


class _Array(_Inert):
    """Stands for an array until the file is read."""

    state: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def array(self) -> np.ndarray[Any, Any]:
        _, shape, dtype, in_columns, content = self.state
        return np.frombuffer(content, dtype.numpy()).reshape(shape, order="F" if in_columns else "C")


class _Type(_Inert):
    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)
        self.order = "="

    def __setstate__(self, state: Any) -> None:
        self.order = state[1].decode("ascii") if isinstance(state[1], bytes) else str(state[1])

    def numpy(self) -> np.dtype[Any]:
        if self.code not in TYPES:
            raise _RefusedError(f"an array of type {self.code!r}")
        return np.dtype((self.order if self.order in ("<", ">") else "=") + self.code)


class _Scalar(_Inert):
    def __init__(self, dtype: _Type, content: bytes) -> None:
        self.dtype, self.content = dtype, content

    def number(self) -> Any:
        return np.frombuffer(self.content, self.dtype.numpy()).item()


class _Reconstruct(_Inert):
    def __new__(cls, *_: Any) -> Any:
        return _Array()


class _Encode(_Inert):
    """How Python 3 writes bytes in the older protocols."""

    def __new__(cls, text: str, encoding: str) -> Any:
        if encoding != "latin1":
            raise _RefusedError(f"bytes in {encoding}")
        return text.encode("latin1")


class _Unpickler(pickle.Unpickler):
    _KNOWN: ClassVar[Mapping[tuple[str, str], type[_Inert]]] = {
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Type,
        ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
        ("numpy.core.multiarray", "scalar"): _Scalar,
        ("numpy._core.multiarray", "scalar"): _Scalar,
        ("_codecs", "encode"): _Encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._KNOWN:
            raise _RefusedError(f"{module}.{name}")
        return self._KNOWN[module, name]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key.decode("latin1") if isinstance(key, bytes) else key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, _Array):
        return value.array()
    if isinstance(value, _Scalar):
        return value.number()
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise _RefusedError(f"an object of type {type(value).__name__.strip('_')}")
