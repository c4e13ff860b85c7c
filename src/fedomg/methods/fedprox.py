"""FedProx: FedAvg with a quadratic pull to the model that the client received.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, equation 2: a client minimises
f(w) + mu / 2 ||w - theta||^2 over the shared trainable parameters. Some codes penalise the unsquared norm of each tensor
instead; its gradient is undefined where training starts, and it is not offered here.
"""

from collections.abc import Sequence
from functools import partial

from pydantic import Field
from torch import Tensor

from fedomg.local.loop import Stage, Visit
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.methods.method import Entry


class FedProxOptions(LocalOptions):
    mu: float = Field(0.01, ge=0, allow_inf_nan=False, description="strength of the pull to the received model")


class FedProx(Trainer[FedProxOptions]):
    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(term=partial(self._pull, received=visit.broadcast.shared)),)

    def _pull(self, values: Tensor, received: Tensor) -> Tensor:
        return self.options.mu * (values - received)


METHOD = Entry("fedprox", "a pull to the received model while training", "Li et al., MLSys 2020", local=FedProxOptions, trainer=FedProx)
