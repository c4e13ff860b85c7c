"""ERM: one trainer that holds every source domain and minimises the mean loss, the baseline that knows no federation.

Vapnik, "Statistical Learning Theory", Wiley 1998. A step takes one batch from each source domain and descends on the mean over all of
them; a pass is over when as many examples have been drawn as the sources hold. A round is a stretch of this training, so
the optimizer lives on between rounds.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedomg.data.examples import Batch
from fedomg.local.loop import Stage, Visit
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.methods.method import Entry


class CentralisedOptions(LocalOptions):
    """`batch_size` is that of each source domain."""

    optimizer_state: Literal["reset", "persistent"] = Field("persistent", description="whether the optimizer lives on between rounds")


class Erm(Trainer[CentralisedOptions]):
    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(_mean_loss, by_domain=True),)


def joined(batches: Sequence[Batch]) -> Batch:
    """The batches of all domains as one."""
    return Batch(torch.cat([batch.inputs for batch in batches]), torch.cat([batch.labels for batch in batches]))


def _mean_loss(visit: Visit, batches: list[Batch]) -> Tensor:
    inputs, labels = joined(batches)
    return F.cross_entropy(visit.model.module(inputs), labels)


METHOD = Entry(
    "erm",
    "one trainer that holds all source domains, no federation",
    "Vapnik, Wiley 1998",
    kind="centralised",
    composes=False,
    local=CentralisedOptions,
    trainer=Erm,
)
