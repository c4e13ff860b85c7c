"""Everything on the server that is not the model: the phases of a round, what clients are sent beside the model."""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from fedomg.core.options import Options
from fedomg.core.params import Tensors
from fedomg.core.records import FIT, Reply


class Phase(NamedTuple):
    """One exchange of a round; `updates` marks the one whose replies fill the update matrix."""

    name: str
    clients: Sequence[int]
    updates: bool = False


OptionsT = TypeVar("OptionsT", bound=Options)


class Coordinator(Generic[OptionsT]):
    """One exchange a round and nothing beside the model. A method overrides what it adds.

    `options` are the method's own, the keys of `[local]`.
    """

    def __init__(self, options: OptionsT) -> None:
        self.options = options

    def initial(self, clients: int, parameters: int) -> Tensors:
        """The state before the first round, given how many clients there are and how long the shared vector is."""
        return {}

    def phases(self, round: int, cohort: Sequence[int]) -> Sequence[Phase]:
        return (Phase(FIT, cohort, updates=True),)

    def extras(self, phase: str, client: int, state: Tensors) -> Tensors:
        """What this client is sent beside the model, in training phases and in views."""
        return {}

    def collect(self, phase: str, replies: Sequence[Reply], updates: Tensor | None, state: Tensors) -> Tensors:
        """The state after a phase."""
        return state
