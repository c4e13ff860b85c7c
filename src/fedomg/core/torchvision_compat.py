"""torchvision beside a torch without CUDA.

torchvision's registry build links CUDA. Beside a CPU-only torch its extension cannot be loaded, and the import then fails with
"operator torchvision::nms does not exist". Declared beforehand, without a kernel, the two operators in question let it pass:
models, data sets and transforms work, `ops.nms` and the image decoders of `torchvision.io` do not. A healthy torchvision is left alone.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

_OPERATORS = ("nms", "qnms")
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # the operators live as long as these objects


def torchvision(module: str) -> Any:
    """`torchvision.<module>`, imported when it is first needed."""
    declare_missing_operators()
    return importlib.import_module(f"torchvision.{module}")


def declare_missing_operators() -> None:
    """To be called before the first import of torchvision; calling it again does nothing."""
    if torch.version.cuda is not None or "torchvision" in sys.modules or hasattr(torch.ops.torchvision, "nms"):
        return
    if _extension_loads():
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in _OPERATORS:
        library.define(name + _SCHEMA)
    _declared.append(library)


def _extension_loads() -> bool:
    found = importlib.util.find_spec("torchvision")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = Path(folder) / f"_C{suffix}"
            if path.exists():
                try:
                    torch.ops.load_library(str(path))
                except OSError:
                    continue
                return True
    return False
