"""Runs whose memory the tests look at, each in a process of its own; they print what they found as JSON."""

import json
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from tests.support import TINY, federation_of, tiny

from fedomg.data.federation import Federation
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.experiment.runner import RunFolder

QUIET = dict.fromkeys(("personalised", "adapted", "target", "worst_group", "validation"), "never") | {"global": "last"}


def resident(peak: bool = False) -> int:
    """Bytes of this process that are in memory, or were at most."""
    key = "VmHWM:" if peak else "VmRSS:"
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def _go(config: Config, people: Federation, out: Path) -> tuple[int, list[int], int]:
    """The parameters, what is resident after each round, and what was before the first."""
    folder, trial = RunFolder(out, config), Experiment(config, people)
    before, after = resident(), []
    with closing(trial.engine):
        state, _ = folder.restore(trial)
        for _ in range(config.rounds):
            state, record = trial.advance(state)
            folder.keep(trial, state, record)
            after.append(resident())
    return trial.parameters, after, before


def growth(out: Path) -> list[int]:
    config = tiny("fedprox+omg", "rounds=200", "server.momentum=0.5", "local.momentum=0.5", 'local.optimizer_state="persistent"')
    return _go(config, build_federation(config), out)[1]


def server(out: Path) -> dict[str, int]:
    """Workers train six clients of a linear model on large images; this process is the server alone."""
    clients, side, draw = 6, 1000, torch.Generator().manual_seed(0)
    people = federation_of([torch.rand(2, 1, side, side, generator=draw) for _ in range(clients)], [torch.tensor([0, 1])] * clients)
    table: dict[str, Any] = {**TINY, "method": "fedomg", "engine": {"name": "pool", "workers": 2}, "evaluate": QUIET}
    table["local"] = {"lr": 1e-3, "batch_size": 2}
    parameters, _, before = _go(make_config(table), people, out)
    return {"clients": clients, "parameters": parameters, "bytes": resident(peak=True) - before}


def cohort(out: Path, clients: int) -> int:
    """A hundred of so many clients a round, four examples each and 160 kB of state."""
    draw = torch.Generator().manual_seed(0)
    pictures, labels = torch.rand(20_000, 1, 32, 32, generator=draw), torch.arange(20_000) % 40
    people = federation_of(list(pictures.split(20_000 // clients)), list(labels.split(20_000 // clients)), classes=40)
    table: dict[str, Any] = {**TINY, "method": "scaffold+omg", "rounds": 6, "evaluate": QUIET, "model": {"name": "linear"}}
    table |= {"local": {"lr": 0.01, "batch_size": 2, "steps": 2}, "server": {"participation": 100 / clients}}
    config = make_config({**table, "engine": {"name": "inline", "states": 1}})
    _go(config, people, out)
    return resident(peak=True)


if __name__ == "__main__":
    name, folder, *numbers = sys.argv[1:]
    probes: dict[str, Callable[..., Any]] = {"growth": growth, "server": server, "cohort": cohort}
    sys.stdout.write(json.dumps(probes[name](Path(folder), *map(int, numbers))))
