"""Fishr: the variance of the classifier's gradient over the examples is made the same in every source domain.

Rame, Dancette and Cord, "Fishr: Invariant Gradient Variances for Out-of-Distribution Generalization", ICML 2022. Of every example, the
gradient of its loss in the head's parameters; of every domain, the variance of these, coordinate by coordinate, over the examples of the
batch; v, its moving average over the steps, divided by 1 - ema so that gradients keep the scale of one batch. The loss is
    cross entropy + penalty * mean over domains and coordinates of (v_domain - mean over domains of v)^2,
the second term only after `warmup` steps, when the optimizer begins anew; a run of fewer steps is ERM. The paper sums over the
coordinates, published code takes the mean, as here: a matter of the penalty's scale. With a linear head the gradient of an
example is (softmax - one-hot) times its features, so one pass is enough.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fedomg.core.options import LARGE, MOST
from fedomg.core.records import ClientState
from fedomg.data.examples import Batch
from fedomg.local.loop import Progress, Stage, Visit
from fedomg.local.trainer import Trainer
from fedomg.methods.erm import CentralisedOptions, joined
from fedomg.methods.method import Entry
from fedomg.models.split import SplitModel, linear_head

VARIANCES, STEPS = "variances", "steps"


class FishrOptions(CentralisedOptions):
    penalty: float = Field(1000.0, ge=0, le=LARGE, allow_inf_nan=False, description="weight of the variances' distance")
    warmup: int = Field(1500, ge=0, le=MOST, description="steps without the penalty")
    ema: float = Field(0.95, ge=0, lt=1, description="how much of the moving average a step keeps")


class Fishr(Trainer[FishrOptions]):
    def module(self, model: SplitModel) -> nn.Module:
        linear_head("fishr", model)
        return model

    def stages(self, visit: Visit) -> Sequence[Stage]:
        done = int(visit.state.get(STEPS, 0))
        memory = {VARIANCES: visit.state[VARIANCES]} if VARIANCES in visit.state else {}
        loss = partial(self._loss, memory=memory, steps=count(done))
        return (Stage(loss, by_domain=True, restart=self.options.warmup - done, memory=memory),)

    def _loss(self, visit: Visit, batches: list[Batch], memory: ClientState, steps: Iterator[int]) -> Tensor:
        model, (inputs, labels) = visit.model.module, joined(batches)
        assert isinstance(model, SplitModel)
        features = model.body(inputs)
        logits = model.head(features)
        loss, warm, ema = F.cross_entropy(logits, labels), next(steps) < self.options.warmup, self.options.ema
        with torch.set_grad_enabled(not warm):
            parts = _gradients(model.head, features, logits, labels).split([len(batch.labels) for batch in batches])
            variances = (1 - ema) * torch.stack([part.var(dim=0, correction=0) for part in parts])
            if VARIANCES in memory:
                variances = ema * memory[VARIANCES] + variances
            memory[VARIANCES] = variances.detach()
        if warm:
            return loss
        penalty = self.options.penalty * _distance(variances / (1 - ema))
        return loss + (penalty - penalty.detach())  # what is reported is the cross entropy

    def remember(self, visit: Visit, progress: Progress) -> ClientState:
        return {STEPS: visit.state.get(STEPS, torch.tensor(0)) + progress.steps}


def _gradients(head: nn.Module, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """Of each example's cross entropy in the parameters of a linear head: (examples, classes, features, and one for the bias)."""
    classes = torch.arange(logits.shape[1], device=labels.device)  # one_hot looks at the labels, and would wait for them
    errors = logits.float().softmax(dim=1) - (labels.unsqueeze(1) == classes).float()
    if head.bias is not None:
        features = F.pad(features, (0, 1), value=1.0)
    return errors.unsqueeze(2) * features.float().unsqueeze(1)


def _distance(variances: Tensor) -> Tensor:
    """The mean over domains and coordinates of the squared distance to the domains' mean."""
    return (variances - variances.mean(dim=0)).square().mean()


METHOD = Entry(
    "fishr",
    "the variance of the classifier's gradient is the same in every domain",
    "Rame et al., ICML 2022",
    kind="centralised",
    composes=False,
    local=FishrOptions,
    trainer=Fishr,
)
