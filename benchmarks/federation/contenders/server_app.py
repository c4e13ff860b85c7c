"""What the SuperLink runs: the contenders, round by round in turn. Writes the seconds of every round."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedomg.experiment.config import make_config
from fedomg.flower import FedOMG
from fedomg.flower.server import Patience, open_experiment
from fedomg.models import build_model
from flower_rounds import rounds_of

SIZES = {"cnn": 28, "resnet18": 64}
ECHOED = {"cnn": (1, 28, 28), "resnet18": (3, 64, 64)}
"""The inputs of the models that are only sent about: 582,026 and 11,181,642 parameters with 10 classes."""
LR = 1e-3
UNCOUNTED = 1

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    told = context.run_config
    name, nodes, out = str(told["model"]), int(told["nodes"]), Path(str(told["out"]))
    contenders = {**_echoes(grid, name, nodes), **_steps(grid, name, nodes, out)}
    spent: dict[str, list[float]] = {contender: [] for contender in contenders}
    orders = _orders(list(contenders))
    for turn in range(int(told["rounds"]) + UNCOUNTED):
        for contender in orders[turn % len(orders)]:
            start = time.perf_counter()
            contenders[contender]()
            if turn >= UNCOUNTED:
                spent[contender].append(time.perf_counter() - start)
    (out / "seconds.json").write_text(json.dumps(spent), encoding="utf-8")


def _orders(names: list[str]) -> list[list[str]]:
    """An even number of names in as many orders, so that each follows each other equally often.

    What a round costs depends on which went before it: nodes look for messages every three seconds, from when they were last done.
    """
    count = len(names)
    places = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]
    return [[names[(place + turn) % count] for place in places] for turn in range(count)]


def _echoes(grid: Grid, name: str, nodes: int) -> dict[str, Callable[[], None]]:
    """Strategies over clients that send back what they were sent, a little changed."""
    model = build_model(name, ECHOED[name], 10)
    arrays, config = ArrayRecord(_floating(model.state_dict())), ConfigRecord({"work": "echo"})
    return {
        "echo: Flower's FedAvg": rounds_of(_strategy(FedAvg, nodes), grid, arrays, config),
        "echo: fedomg.flower.FedOMG": rounds_of(_strategy(FedOMG, nodes), grid, arrays, config),
    }


def _steps(grid: Grid, name: str, nodes: int, out: Path) -> dict[str, Callable[[], None]]:
    """Clients that read a folder of images and take one step on one of them: fedomg's own, and a plain one."""
    table = {
        "dataset": "folder",
        "data": {"size": SIZES[name], "validation": 0.0, "test": 0.0},
        "local": {"lr": LR, "steps": 1, "batch_size": 1},
        "model": {"name": name},
        "evaluate": dict.fromkeys(("global", "target", "worst_group", "adapted", "personalised", "validation"), "never"),
    }
    experiment = open_experiment(grid, make_config({"method": "fedomg", **table}), out, Patience(nodes, 60, 600), print)
    state = experiment.initial_state()
    classes = len(experiment.federation.dataset.class_names)
    arrays = ArrayRecord(build_model(name, (3, SIZES[name], SIZES[name]), classes).state_dict())
    config = ConfigRecord({"work": "step", "model": name, "size": SIZES[name], "lr": LR})

    def round_() -> None:
        nonlocal state
        state, record = experiment.advance(state)
        assert not record["dropped"]

    return {"step: Flower's FedAvg": rounds_of(_strategy(FedAvg, nodes), grid, arrays, config), "step: fedomg": round_}


def _strategy(kind: type[FedAvg], nodes: int) -> FedAvg:
    return kind(fraction_evaluate=0, min_train_nodes=nodes, min_available_nodes=nodes)


def _floating(state: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in state.items() if tensor.is_floating_point()}
