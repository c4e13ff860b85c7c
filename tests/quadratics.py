"""The smallest experiments there are: every client pulls one number towards a centre of its own."""

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from tests.support import federation_of, tiny
from torch import Tensor, nn

from fedomg import methods
from fedomg.experiment.experiment import Experiment


class _Distance(nn.Module):
    """One number, less the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(1, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.weight - inputs


class Quadratics:
    """Every client minimises half the squared distance of one number to its centre, by full batches.

    The method under test is used as it is: only the model is another, and what torch calls cross-entropy.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, curvature: float = 1.0) -> None:
        def quadratic(distances: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
            losses = curvature / 2 * distances.square().flatten()
            return losses.mean() if reduction == "mean" else losses

        monkeypatch.setattr(F, "cross_entropy", quadratic)

    def experiment(self, name: str, centres: Sequence[float], *overrides: str, size: int = 4) -> Experiment:
        inputs = [torch.full((size, 1), centre) for centre in centres]
        federation = federation_of(inputs, [torch.zeros(size, dtype=torch.long) for _ in centres])
        config = tiny(name, "local.batch_size=100", "local.steps=3", "local.lr=0.1", *overrides)
        method = methods.build(config.method, config.local, config.aggregator)
        method.trainer.module = lambda model: _Distance()  # type: ignore[method-assign]
        return Experiment(config, federation, method)


def path_of(trial: Experiment, rounds: int = 1) -> list[float]:
    """The number on the server, before the first round and after each."""
    state, path = trial.initial_state(), []
    path.append(float(state.shared))
    for _ in range(rounds):
        state, _ = trial.advance(state)
        path.append(float(state.shared))
    return path
