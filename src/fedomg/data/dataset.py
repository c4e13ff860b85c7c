"""What every data source delivers: all examples of all domains, in memory once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

TRAIN, TEST = 0, 1
TENSORS = ("inputs", "labels", "domains", "split", "groups")


@dataclass(frozen=True)
class Dataset:
    """N examples with their class and domain.

    `inputs` is uint8 (N, C, H, W), scaled to [0, 1] and normalised by `mean` and `std` batch by batch,
    or float32 (N, ...), used as it is. `split` says which examples are TRAIN and which TEST where the
    data set itself fixes that. `groups` names the subpopulations of worst-group accuracy; without it
    they are the domains. `skipped` lists files that could not be decoded.
    """

    inputs: Tensor
    labels: Tensor
    domains: Tensor
    class_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    split: Tensor | None = None
    groups: Tensor | None = None
    group_names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def to(self, device: torch.device) -> "Dataset":
        tensors = {name: getattr(self, name) for name in TENSORS}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None})
