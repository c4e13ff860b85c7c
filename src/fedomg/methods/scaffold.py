"""SCAFFOLD: control variates cancel the drift of the clients.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020, algorithm 1 with option II.
A client steps along f'(w) - c_u + c and afterwards sets c_u <- c_u - c + (theta - w) / d, where d, K times the learning rate at a
constant rate, is the sum of the learning rates of the steps it really took. The server averages the updates uniformly and moves
c by the mean change over all clients. A change is -c - h_u / d, so the server reads it off the rows of the update matrix and
nothing beside the update is sent up. Option II assumes plain SGD: other optimizers are refused, where published codes apply it
to Adam all the same.
"""

from collections.abc import Sequence
from functools import partial

import torch
from pydantic import model_validator
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.params import Tensors
from fedomg.core.records import FIT, ClientState, Reply
from fedomg.local.loop import Progress, Stage, Visit
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.methods.method import Entry
from fedomg.omg import combine
from fedomg.server.coordinator import Coordinator
from fedomg.server.weighting import Uniform

CONTROL, CLIENTS, DISTANCE = "control", "clients", "distance"


class ScaffoldOptions(LocalOptions):
    @model_validator(mode="after")
    def _plain_sgd(self) -> "ScaffoldOptions":
        if self.optimizer != "sgd" or self.momentum or self.clip is not None:
            raise UserError("scaffold's control variates assume plain sgd: leave out local.optimizer, local.momentum and local.clip")
        return self


class Scaffold(Trainer[ScaffoldOptions]):
    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(term=partial(_corrected, by=visit.broadcast.extras[CONTROL] - _own(visit))),)

    def report(self, visit: Visit, progress: Progress) -> Tensors:
        return {DISTANCE: torch.tensor(progress.distance, dtype=torch.float64)}

    def remember(self, visit: Visit, progress: Progress) -> ClientState:
        if not progress.steps:
            return {CONTROL: _own(visit)}
        drift = (visit.broadcast.shared - visit.model.shared) / progress.distance
        return {CONTROL: _own(visit) - visit.broadcast.extras[CONTROL] + drift}


def _corrected(values: Tensor, by: Tensor) -> Tensor:
    return by


def _own(visit: Visit) -> Tensor:
    return visit.state.get(CONTROL, torch.zeros_like(visit.broadcast.shared))


class ScaffoldCoordinator(Coordinator[ScaffoldOptions]):
    def initial(self, clients: int, parameters: int) -> Tensors:
        return {CONTROL: torch.zeros(parameters), CLIENTS: torch.tensor(clients)}

    def extras(self, phase: str, client: int, state: Tensors) -> Tensors:
        return {CONTROL: state[CONTROL]} if phase in (FIT, "view:adapted") else {}

    def collect(self, phase: str, replies: Sequence[Reply], updates: Tensor | None, state: Tensors) -> Tensors:
        assert updates is not None
        clients = int(state[CLIENTS])
        distances = [float(reply.extras[DISTANCE]) for reply in replies]
        moved = sum(1 for distance in distances if distance)
        shares = torch.tensor([-1 / (clients * distance) if distance else 0.0 for distance in distances], dtype=torch.float64)
        return {**state, CONTROL: (1 - moved / clients) * state[CONTROL] + combine(shares, updates)}


METHOD = Entry(
    "scaffold",
    "control variates against client drift",
    "Karimireddy et al., ICML 2020",
    local=ScaffoldOptions,
    trainer=Scaffold,
    coordinator=ScaffoldCoordinator,
    weighting=Uniform,
)
