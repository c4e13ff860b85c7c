"""A weighting and a rule: from the replies of a round to one direction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedomg.core.params import Tensors
from fedomg.core.records import Reply
from fedomg.omg import combine
from fedomg.server.rules import Combination, Rule
from fedomg.server.weighting import Weighting


@dataclass(frozen=True)
class Aggregate:
    direction: Tensor
    combination: Combination

    @property
    def reference(self) -> Tensor:
        return self.combination.reference


@dataclass(frozen=True)
class Aggregator:
    weighting: Weighting
    rule: Rule

    def initial(self, clients: int, rounds: int) -> Tensors:
        """The state before the first round."""
        return self.weighting.initial(clients, rounds)

    def direction(self, gram: Tensor, updates: Tensor, replies: Sequence[Reply], state: Tensors) -> tuple[Aggregate, Tensors]:
        """Combines the rows of `updates`, one for each reply, given their Gram matrix."""
        reference, state = self.weighting.weights(replies, state)
        combination = self.rule.combine(gram, reference)
        return Aggregate(combine(combination.coefficients, updates), combination), state


def merge_buffers(current: Mapping[str, Tensor], replies: Sequence[Reply], weights: Tensor) -> Tensors:
    """Floating buffers are averaged with the clients' weights, counters take the largest."""
    merged: Tensors = {}
    for name, buffer in current.items():
        sent = torch.stack([reply.buffers[name] for reply in replies])
        if buffer.is_floating_point():
            mean = torch.tensordot(weights.to(sent.device), sent.double(), dims=1)
            merged[name] = mean.to(buffer.dtype)
        else:
            merged[name] = sent.amax(dim=0)
    return merged
