"""Per-FedAvg: an initialisation that is good after one step of SGD on the client's own data.

Fallah et al., "Personalized Federated Learning with Theoretical Guarantees", NeurIPS 2020. A step takes independent batches D and
D'. First order ("fo"): w' = w - alpha f'(w; D), then w <- w - lr f'(w'; D'). Hessian-free ("hf") subtracts the curvature term by a
finite difference on a third batch: lr (g - alpha (f'(w + delta g; D'') - f'(w - delta g; D'')) / (2 delta)). The personalised view is
one step of rate alpha on one batch of the client's training data, then its test data. D' follows the client's ordinary order of
batches and D an order of its own, so that alpha = 0 is FedAvg to the bit. The published code trains twice a round and gives a
client with less than two batches nothing to do; both are departed from here.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import Tensor

from fedomg.core.params import Group
from fedomg.data.examples import Batch
from fedomg.local.loop import Stage, Visit, cross_entropy, train
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.methods.method import Entry


class PerAvgOptions(LocalOptions):
    alpha: float | None = Field(None, ge=0, allow_inf_nan=False, description="rate of the inner step; by default lr")
    variant: Literal["fo", "hf"] = Field("fo", description="first order, or with the curvature by finite differences")
    delta: float = Field(1e-3, gt=0, allow_inf_nan=False, description="length of the finite difference of hf")


class PerAvg(Trainer[PerAvgOptions]):
    personalises = True

    @property
    def _alpha(self) -> float:
        return self.options.lr if self.options.alpha is None else self.options.alpha

    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(gradient=self._gradient, orders=2 if self.options.variant == "fo" else 3),)

    def _gradient(self, visit: Visit, batches: list[Batch]) -> Tensor:
        """The gradient after an inner step on the second batch; `hf` corrects it on the third."""
        values, gradient = visit.model.shared, visit.model.gradients[Group.SHARED]
        outer, inner, *third = batches
        start = values.clone()
        if self._alpha:
            with visit.model.leaving_buffers():
                cross_entropy(visit, [inner]).backward()
            values.sub_(gradient, alpha=self._alpha)
            gradient.zero_()
        loss = cross_entropy(visit, [outer])
        loss.backward()
        if third:
            along = gradient.clone()
            curved = self._difference(visit, start, along, third)
            gradient.copy_(along).sub_(curved, alpha=self._alpha)
        values.copy_(start)
        return loss.detach()

    def _difference(self, visit: Visit, start: Tensor, along: Tensor, batches: list[Batch]) -> Tensor:
        """The Hessian at `start` times `along`."""
        values, gradient, delta = visit.model.shared, visit.model.gradients[Group.SHARED], self.options.delta
        ends = []
        for sign in (1, -1):
            values.copy_(start).add_(along, alpha=sign * delta)
            gradient.zero_()
            with visit.model.leaving_buffers():
                cross_entropy(visit, batches).backward()
            ends.append(gradient.clone())
        return (ends[0] - ends[1]) / (2 * delta)

    def personalise(self, visit: Visit) -> None:
        train(Stage(steps=1, lr=self._alpha, plain=True, name="personalise"), visit, {})


METHOD = Entry(
    "peravg",
    "an initialisation that is good after one step",
    "Fallah et al., NeurIPS 2020",
    local=PerAvgOptions,
    trainer=PerAvg,
)
