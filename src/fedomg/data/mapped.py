"""Bytes that stay on disk: every process that maps the file shares one copy in memory, and only the pages that are read are in it."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedomg.core.errors import UserError


@dataclass(frozen=True)
class MappedFile:
    """A file of bytes, and the shape of the tensor that it holds."""

    path: Path
    shape: tuple[int, ...]

    def open(self) -> Tensor:
        """The tensor. What is written to it would stay in this process."""
        size = math.prod(self.shape)
        if not size:
            return torch.empty(self.shape, dtype=torch.uint8)
        if not self.path.is_file() or self.path.stat().st_size != size:
            raise UserError(f"{self.path} is damaged or gone: remove the folder {self.path.parent}, and it is made anew")
        return torch.from_file(str(self.path), shared=False, size=size, dtype=torch.uint8).view(self.shape)
