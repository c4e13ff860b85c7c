"""Small pieces that methods build their local steps from."""

import torch.nn.functional as F
from torch import Tensor

from fedomg.core.params import Group
from fedomg.data.examples import Batch
from fedomg.local.loop import Visit


def cross_entropy(visit: Visit, batches: list[Batch]) -> Tensor:
    """The gradient of the mean cross-entropy of the first batch."""
    inputs, labels = batches[0]
    loss = F.cross_entropy(visit.model.module(inputs), labels)
    loss.backward()
    return loss.detach()


def add_pull(visit: Visit, strength: float) -> None:
    """Adds the gradient of strength / 2 times the squared distance to the received shared parameters."""
    visit.model.gradients[Group.SHARED].add_(visit.model.shared - visit.broadcast.shared, alpha=strength)
