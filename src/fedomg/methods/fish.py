"""Fish: steps on one source domain after the other, then part of the way there; to first order this aligns the domains' gradients.

Shi et al., "Gradient Matching for Domain Generalization", ICLR 2022, algorithm 1. From w, one optimizer step on a batch of each
source domain in turn leads to w'; then w <- w + meta_lr (w' - w), BatchNorm statistics too. The optimizer of the inner steps is the
configured one and lives on; DomainBed's is Adam.
"""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from fedomg.core.params import clone
from fedomg.data.examples import Batch
from fedomg.local.loop import Move, Stage, Visit
from fedomg.local.trainer import Trainer
from fedomg.methods.erm import CentralisedOptions
from fedomg.methods.method import Entry


class FishOptions(CentralisedOptions):
    meta_lr: float = Field(0.5, ge=0, le=1, description="how far to go towards where the steps on all domains lead")


class Fish(Trainer[FishOptions]):
    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(step=self._step, by_domain=True),)

    def _step(self, visit: Visit, batches: list[Batch], move: Move) -> Tensor:
        start, buffers = visit.model.shared.clone(), clone(visit.model.buffers)
        losses = [move([batch]) for batch in batches]
        visit.model.shared.copy_(start.lerp(visit.model.shared, self.options.meta_lr))
        for name, buffer in visit.model.buffers.items():
            if buffer.is_floating_point():
                buffer.copy_(buffers[name].lerp(buffer, self.options.meta_lr))
        return torch.stack(losses).mean()


METHOD = Entry(
    "fish",
    "steps on one domain after the other, then part of the way there",
    "Shi et al., ICLR 2022",
    kind="centralised",
    composes=False,
    local=FishOptions,
    trainer=Fish,
)
