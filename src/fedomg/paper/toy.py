"""The toy followed step by step: where the linear model goes, and which way each client pulls it."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedomg.experiment.config import Config
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.experiment.select import Record

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Path3:
    """`points` (rounds + 1, 3): weight of x, weight of y, bias; `pulls` (clients, 3): the clients' updates in the first round."""

    points: Array
    pulls: Array
    records: tuple[Record, ...]


def follow(config: Config) -> Path3:
    """Runs it in this process."""
    trial = Experiment(config, build_federation(config))
    with closing(trial.engine):
        state = trial.initial_state()
        points, records, pulls = [state.shared.clone()], [], torch.empty(0)
        for _ in range(config.rounds):
            state, record = trial.advance(state)
            if record["round"] == 1:
                pulls = trial.engine.matrix(len(record["cohort"])).clone()
            points.append(state.shared.clone())
            records.append(record)
    return Path3(np.stack(list(_boundary(points))), np.stack(list(_boundary(pulls))), tuple(records))


def _boundary(vectors: list[Tensor] | Tensor) -> Iterator[Array]:
    """Of two logits only the difference decides: its weights of x and y, and its bias."""
    for vector in vectors:
        weights, bias = vector[:4].view(2, 2), vector[4:]
        yield torch.stack([*(weights[1] - weights[0]), bias[1] - bias[0]]).double().numpy()


def steepness(path: Path3) -> tuple[float, float]:
    """|w_x| / |w_y| and |bias| at the end: both are 0 on the boundary that all domains share."""
    across, up, bias = path.points[-1]
    return abs(across) / max(abs(up), 1e-12), abs(bias)
