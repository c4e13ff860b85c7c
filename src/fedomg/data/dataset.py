"""What every data source delivers: all examples of all domains, in memory once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedomg.data.mapped import MappedFile
from fedomg.data.options import Augmentation

TRAIN, TEST, VALIDATION = 0, 1, 2
TENSORS = ("inputs", "labels", "domains", "split", "groups")


@dataclass(frozen=True)
class Dataset:
    """N examples with their class and domain.

    `inputs` is uint8 (N, C, H, W), scaled to [0, 1] and normalised by `mean` and `std` batch by batch,
    or float32 (N, ...), used as it is. `file` is what they are mapped from, where they stay on disk.
    `window` is the side of the square that is seen of a picture, where that is not all of it.
    `split` says which examples are TRAIN, VALIDATION and TEST where the data set itself fixes that;
    `whole_target` that a domain held out is tested as a whole all the same. `groups` names the
    subpopulations of worst-group accuracy; without it they are the domains. `augmentation` names what
    is done to training pictures. `skipped` lists files that could not be decoded, `left_out` files
    that are known to be bad. `made_from` is what one input was, where features have taken the inputs' place.
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
    left_out: tuple[str, ...] = ()
    file: MappedFile | None = None
    window: int | None = None
    augmentation: Augmentation = "none"
    whole_target: bool = False
    made_from: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what a model sees of one example."""
        whole = tuple(self.inputs.shape[1:])
        return whole if self.window is None else (whole[0], self.window, self.window)

    def to(self, device: torch.device) -> "Dataset":
        tensors = {name: getattr(self, name) for name in TENSORS}
        moved = {name: tensor.to(device) for name, tensor in tensors.items() if tensor is not None}
        return replace(self, **moved, file=self.file if device.type == "cpu" else None)
