"""Small pieces that methods build their local steps from."""

import torch.nn.functional as F
from torch import Tensor

from fedomg.data.examples import Batch
from fedomg.local.loop import Visit


def cross_entropy(visit: Visit, batches: list[Batch]) -> Tensor:
    """The gradient of the mean cross-entropy of one batch."""
    (batch,) = batches
    loss = F.cross_entropy(visit.model.module(batch.inputs), batch.labels)
    loss.backward()
    return loss.detach()
