"""FedRoD: one body with two heads, a shared one trained on a balanced loss and a personal one on the empirical loss.

Chen and Chao, "On Bridging Generic and Personalized Federated Learning for Image Classification", ICLR 2022. The balanced softmax
adds the logarithm of the client's class counts to the shared head's logits; only this loss moves body and shared head. The
personal head learns on top of both, detached, as a correction to the shared logits. The personalised view adds the two. Counts are
those of the client's whole training split: published code counts over batches and so may count a present class as absent, whose
loss is then infinite. Classes that the client lacks are masked out of the balanced loss. `local.clip`
bounds the joint norm of both losses' gradients.
"""

import copy
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedomg.core.params import Group
from fedomg.data.examples import Batch
from fedomg.local.loop import Stage, Visit
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Predictor, Trainer
from fedomg.methods.method import Entry
from fedomg.models.split import SplitModel


class TwoHeads(SplitModel):
    """Answers with the shared head; the personal one starts as its copy."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__(model.body, model.head)
        self.personal = copy.deepcopy(model.head)


class FedRod(Trainer[LocalOptions]):
    personalises = True

    def module(self, model: SplitModel) -> nn.Module:
        return TwoHeads(model)

    def group_of(self, name: str) -> Group:
        return Group.PERSONAL if name.startswith("personal.") else Group.SHARED

    def stages(self, visit: Visit) -> Sequence[Stage]:
        counts = torch.bincount(visit.client.train.labels, minlength=visit.classes)
        return (Stage(partial(self._loss, log_counts=counts.log())),)

    def _loss(self, visit: Visit, batches: list[Batch], log_counts: Tensor) -> Tensor:
        (inputs, labels), *_ = batches
        model = _two_heads(visit)
        features = model.body(inputs)
        shared = model.head(features)
        balanced = F.cross_entropy(shared + log_counts, labels)
        empirical = F.cross_entropy(shared.detach() + model.personal(features.detach()), labels)
        return balanced + empirical - empirical.detach()  # what is reported is the shared head's loss

    def predictor(self, visit: Visit) -> Predictor:
        model = _two_heads(visit)

        def predict(inputs: Tensor) -> Tensor:
            features = model.body(inputs)
            logits: Tensor = model.head(features) + model.personal(features)
            return logits

        return predict


def _two_heads(visit: Visit) -> TwoHeads:
    assert isinstance(visit.model.module, TwoHeads)
    return visit.model.module


METHOD = Entry("fedrod", "a shared head on a balanced loss, a personal one beside it", "Chen and Chao, ICLR 2022", trainer=FedRod)
