"""Objects named by an import path, `package.module:name`: how users bring their own data sets and models."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from fedomg.core.errors import UserError
from fedomg.core.names import unknown_name

_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_IMPORT_PATH = re.compile(f"{_DOTTED}:{_DOTTED}")


def is_import_path(name: str) -> bool:
    """Whether this is meant as an import path; no name of ours has a colon."""
    return ":" in name


def check_import_path(what: str, name: str) -> str:
    """The path itself, where it is well formed."""
    if not _IMPORT_PATH.fullmatch(name):
        raise UserError(f'{what} "{name}" is no import path: write package.module:name')
    return name


def import_object(what: str, path: str) -> Any:
    """The object behind a path. Modules are looked for in the current directory first, as `python -m` does."""
    module_name, _, attributes = check_import_path(what, path).partition(":")
    found = _import_module(what, path, module_name)
    for attribute in attributes.split("."):
        if not hasattr(found, attribute):
            raise UserError(f"{what} {path}: {unknown_name(f'object of {module_name}', attribute, _public(found))}")
        found = getattr(found, attribute)
    return found


def _import_module(what: str, path: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UserError(f"{what} {path}: no module {error.name}, neither in {here} nor installed") from None
        raise UserError(f"{what} {path}: importing {name} fails: {error}") from None
    except Exception as error:  # whatever the user's own module raises
        raise UserError(f"{what} {path}: importing {name} fails: {reason(error)}") from error


def reason(error: Exception) -> str:
    """What a user's own code has raised, for one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _public(owner: Any) -> list[str]:
    return [name for name in vars(owner) if not name.startswith("_")] if hasattr(owner, "__dict__") else []
