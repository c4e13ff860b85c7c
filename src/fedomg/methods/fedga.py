"""FedGA: clients count more the worse the averaged model does on their validation data than their own model did.

Zhang et al., "Federated Domain Generalization with Generalization Adjustment", CVPR 2023 (FedDG-GA). With m clients, weights a of
them (1/m at first) and v_u what averaging changed in client u's validation metric, the server moves, as the authors' code does,

    a_u <- a_u + sign * (v_u / max |v|) * (1/m) * s_r,    s_r = step * (1 - (r - 1) / R),

clips to [0, 1] and renormalises. The sign is -1 for accuracies and +1 for losses; r counts the aggregations that were measured, from zero.

One exchange a round: the client measures its own model after it has trained, and the aggregated model when it next receives one,
before it trains; the weights are moved then, before that aggregation. (The published code asks each client twice a round.) Among many
clients only those that take part are compared, and the total weight of these is kept; who is measured for the first time is not moved,
nor is anybody where nothing changed, where the published code divides by zero. The number of clients is not fixed to three. The
paper centres v before it scales it, its code does not.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.params import Tensors
from fedomg.core.records import Reply
from fedomg.local.features import BATCH_SIZE
from fedomg.local.loop import Progress, Visit
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.methods.method import Entry
from fedomg.server.weighting import Weighting

RECEIVED, TRAINED = "received", "trained"
SHARES, MEASURED, ROUND, ROUNDS = "shares", "measured", "round", "rounds"


class FedGaOptions(LocalOptions):
    step: float = Field(0.2, ge=0, le=1, description="how far the weights move in the first rounds, as a share of the mean weight")
    metric: Literal["accuracy", "loss"] = Field("accuracy", description="what is measured on the validation data")


class FedGa(Trainer[FedGaOptions]):
    def arrive(self, visit: Visit) -> Tensors:
        return {RECEIVED: self._validated(visit)}

    def report(self, visit: Visit, progress: Progress) -> Tensors:
        return {TRAINED: self._validated(visit)}

    def _validated(self, visit: Visit) -> Tensor:
        """The metric of the model as it is loaded, over the client's validation split."""
        examples, model = visit.client.validation, visit.model.module.eval()
        if not len(examples):
            raise UserError(
                f'fedga weighs clients by their validation data, and client "{visit.client.name}" has none: raise data.validation'
            )
        found = []
        with torch.no_grad():
            for inputs, labels in examples.in_order(BATCH_SIZE):
                logits = model(inputs)
                correct = (logits.argmax(dim=1) == labels).double()
                found.append(correct if self.options.metric == "accuracy" else F.cross_entropy(logits, labels, reduction="none").double())
        return torch.cat(found).mean()


class GeneralisationGap(Weighting):
    """The state holds every client's share, one at first, and what it last reported of its own model."""

    options: FedGaOptions

    def initial(self, clients: int, rounds: int) -> Tensors:
        return {
            SHARES: torch.ones(clients, dtype=torch.float64),
            TRAINED: torch.zeros(clients, dtype=torch.float64),
            MEASURED: torch.zeros(clients, dtype=torch.bool),
            ROUND: torch.tensor(0),
            ROUNDS: torch.tensor(rounds),
        }

    def weights(self, replies: Sequence[Reply], state: Tensors) -> tuple[Tensor, Tensors]:
        state = {name: tensor.cpu().clone() for name, tensor in state.items()}
        cohort = torch.tensor([reply.client for reply in replies])
        changes = (_reported(RECEIVED, replies) - state[TRAINED][cohort]) * state[MEASURED][cohort]
        before = state[SHARES][cohort]
        total = before.sum()
        relative = before * (len(cohort) / total) if total else torch.ones_like(before)
        shares = self._moved(relative, changes, state)
        state[SHARES][cohort] = shares * (total / shares.sum())
        state[TRAINED][cohort] = _reported(TRAINED, replies)
        state[MEASURED][cohort] = True
        state[ROUND] += 1
        return shares / shares.sum(), state

    def _moved(self, shares: Tensor, changes: Tensor, state: Tensors) -> Tensor:
        """The shares are m times the weights: their mean is one. They stay where all would be moved to nothing."""
        largest = changes.abs().max()
        if not largest:
            return shares
        measured = int(state[ROUND]) - 1
        step = self.options.step * (1 - (measured - 1) / int(state[ROUNDS]))
        worse = changes if self.options.metric == "loss" else -changes
        moved = (shares + step * worse / largest).clamp(0, len(shares))
        return moved if moved.any() else shares


def _reported(name: str, replies: Sequence[Reply]) -> Tensor:
    return torch.stack([reply.extras[name] for reply in replies]).double().cpu()


METHOD = Entry(
    "fedga",
    "clients count by what averaging costs them",
    "Zhang et al., CVPR 2023",
    local=FedGaOptions,
    trainer=FedGa,
    weighting=GeneralisationGap,
    individual="the server weighs clients against each other by what each has measured",
)
