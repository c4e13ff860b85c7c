"""A model's parameters as one flat vector a group, with the module's tensors as views into it."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from enum import StrEnum

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]


class Group(StrEnum):
    """What becomes of a parameter.

    Shared goes through the aggregator, auxiliary through the coordinator, personal stays with the client, frozen never changes.
    """

    SHARED = "shared"
    AUXILIARY = "auxiliary"
    PERSONAL = "personal"
    FROZEN = "frozen"


def nbytes(tensors: Mapping[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors.values())


def is_finite(tensor: Tensor) -> bool:
    """Whether every value is. NaN is both the least and the greatest of values, and the two are found in one pass without a copy."""
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    return bool(torch.stack(tensor.aminmax()).isfinite().all())


def clone(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


class FlatModel:
    """A module whose parameters live in one contiguous vector a group, in registration order, each tensor once.

    Loading a broadcast is then one copy, an update one subtraction, an optimizer step one fused operation. Within the vector a
    convolution's weights stand channels last, the order in which convolutions and pooling are fast. A parameter that asks for no gradient
    when it comes is frozen for good.
    """

    def __init__(self, module: nn.Module, group_of: Callable[[str], Group]) -> None:
        self.module = module
        self.parameters: dict[Group, list[tuple[str, nn.Parameter]]] = {group: [] for group in Group}
        for name, parameter in module.named_parameters():
            self.parameters[group_of(name) if parameter.requires_grad else Group.FROZEN].append((name, parameter))
        device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
        self.values = {group: _flatten(members, device) for group, members in self.parameters.items()}
        self.gradients: dict[Group, Tensor] = {}
        self.initial_values = {group: values.clone() for group, values in self.values.items()}
        self._fixed = {id(parameter) for parameter in module.parameters() if not parameter.requires_grad}
        self.initial_buffers = clone(self.buffers)
        self.has_batchnorm = any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in module.modules())

    @property
    def shared(self) -> Tensor:
        return self.values[Group.SHARED]

    @property
    def buffers(self) -> Tensors:
        """Read anew each time: a module may put another tensor in a buffer's place."""
        return dict(self.module.named_buffers())

    def load(self, shared: Tensor, personal: Tensor | None, buffers: Mapping[str, Tensor], auxiliary: Tensor | None = None) -> None:
        """Sets everything a client starts from; what it was not given takes its initial value."""
        given = {Group.SHARED: shared, Group.PERSONAL: personal, Group.AUXILIARY: auxiliary}
        for group, values in self.values.items():
            start = given.get(group)
            values.copy_(self.initial_values[group] if start is None else start)
        for name, buffer in self.buffers.items():
            buffer.copy_(buffers.get(name, self.initial_buffers[name]))

    @contextmanager
    def leaving_buffers(self) -> Iterator[None]:
        """Passes inside do not move BatchNorm statistics."""
        before = clone(self.buffers)
        yield
        for name, buffer in self.buffers.items():
            buffer.copy_(before[name])

    def over(self, values: Mapping[Group, Tensor]) -> "FlatModel":
        """The same module, for who reads its vectors: with these in their place."""
        other = copy(self)
        other.values, other.gradients = {**self.values, **values}, {}
        return other

    def train_only(self, groups: Collection[Group]) -> None:
        """Lets gradients flow to these groups, into their flat gradient vectors. Who never trains has none."""
        if not self.gradients:
            self.gradients = {group: torch.zeros_like(values) for group, values in self.values.items()}
        for group, members in self.parameters.items():
            trained = group in groups
            for (_, parameter), gradient in zip(members, self._views(group), strict=True):
                parameter.requires_grad_(trained and id(parameter) not in self._fixed)
                parameter.grad = gradient if trained else None

    def _views(self, group: Group) -> Iterator[Tensor]:
        return views(self.gradients[group], [parameter for _, parameter in self.parameters[group]])


def views(flat: Tensor, like: Iterable[Tensor]) -> Iterator[Tensor]:
    """The vector's pieces in the shapes of these tensors, convolution weights channels last."""
    start = 0
    for tensor in like:
        piece = flat[start : start + tensor.numel()]
        start += tensor.numel()
        if tensor.ndim == 4:
            out, channels, height, width = tensor.shape
            yield piece.view(out, height, width, channels).permute(0, 3, 1, 2)
        else:
            yield piece.view(tensor.shape)


def _flatten(members: list[tuple[str, nn.Parameter]], device: torch.device) -> Tensor:
    for name, parameter in members:
        if parameter.dtype != torch.float32:
            raise TypeError(f"parameter {name} is {parameter.dtype}, only float32 can be trained")
    parameters = [parameter for _, parameter in members]
    flat = torch.empty(sum(parameter.numel() for parameter in parameters), device=device)
    for parameter, view in zip(parameters, views(flat, parameters), strict=True):
        parameter.data = view.copy_(parameter.detach())
    return flat
