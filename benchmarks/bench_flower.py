"""What a round costs without training: this project's engines beside Flower's own FedAvg, in one simulation and in turn.

    python benchmarks/bench_flower.py [--rounds 20] [--nodes 3] [--workers N] [--json FILE]

Every contender sends a model to each node, gets one of the same size back that no other has sent, and aggregates: FedOMG over the Flower,
the pool and the in-process engine, and Flower's FedAvg strategy with the state dict of the same size, as many tensors as the model has. The
medians of the rounds after the first two are printed, and the ratio to Flower's FedAvg, which took its turns between theirs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from fedomg import omg
from fedomg.core.params import Tensors
from fedomg.core.records import Broadcast, ClientState, Reply
from fedomg.engine.base import Engine
from fedomg.engine.flower.engine import FlowerEngine
from fedomg.engine.flower.messages import SiteOf
from fedomg.engine.flower.node import app
from fedomg.engine.flower.simulation import Simulation
from fedomg.engine.inline import InlineEngine
from fedomg.engine.pool import PoolEngine
from fedomg.engine.states import ClientStates
from fedomg.engine.worker import Blueprint
from fedomg.models import build_model
from flower_rounds import echo, rounds_of

MODELS = {"cnn": (3, 32, 32), "resnet18": (3, 64, 64)}
UNCOUNTED = 2


class Echo:
    """Moves every parameter by a little of its own, and by no more work than that."""

    def __init__(self, configuration: str, tensors: Tensors | None = None) -> None:
        pass

    def handle(self, phase: str, client: int, broadcast: Broadcast, state: ClientState, row: Tensor | None) -> tuple[Reply, ClientState]:
        return Reply(client, samples=1, update=torch.mul(broadcast.shared, 1e-3 * (client + 1), out=row)), state


def over(engine: Engine, model: Tensor, nodes: int) -> Callable[[], None]:
    """A round of FedOMG over an engine, on a model that changes."""

    def round_() -> None:
        model.mul_(1.0001)
        rows = engine.matrix(nodes)
        engine.exchange("fit", {client: Broadcast(1, model) for client in range(nodes)}, rows)
        model.add_(omg.direction(rows), alpha=1e-3)

    return round_


def measure(name: str, nodes: int, workers: int, rounds: int, simulation: Simulation) -> dict[str, float]:
    """The median seconds of a round, by contender."""
    module = build_model(name, MODELS[name], 10)
    state = {key: value for key, value in module.state_dict().items() if value.is_floating_point()}
    size = sum(parameter.numel() for parameter in module.parameters())
    here = f"{Path(__file__).stem}:Echo"
    hosts = dict(enumerate(simulation.nodes))
    with ExitStack() as stack:
        blueprint = Blueprint(here, "", {})
        pool = PoolEngine(blueprint, size, nodes, {}, workers, ClientStates(), print)
        stack.enter_context(closing(pool))
        engines: dict[str, Engine] = {
            "flower": FlowerEngine(simulation.grid, hosts, SiteOf(here, ""), size, ClientStates()),
            "pool": pool,
            "inline": InlineEngine(Echo(""), size, ClientStates(), torch.device("cpu")),
        }
        contenders = {f"fedomg, {engine} engine": over(opened, torch.randn(size), nodes) for engine, opened in engines.items()}
        strategy = FedAvg(fraction_evaluate=0, min_train_nodes=nodes, min_available_nodes=nodes)
        contenders["Flower's FedAvg"] = rounds_of(strategy, simulation.grid, ArrayRecord(state), ConfigRecord())
        spent: dict[str, list[float]] = {contender: [] for contender in contenders}
        for _ in range(rounds + UNCOUNTED):
            for contender, round_ in contenders.items():
                start = time.perf_counter()
                round_()
                spent[contender].append(time.perf_counter() - start)
    return {contender: statistics.median(seconds[UNCOUNTED:]) for contender, seconds in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parent))  # where workers and nodes find this module
    app.train()(echo)
    started = time.perf_counter()
    with closing(Simulation(asked.nodes, asked.workers)) as simulation:
        results = {}
        for name in MODELS:
            results[name] = measure(name, asked.nodes, asked.workers, asked.rounds, simulation)
            if name == next(iter(MODELS)):
                print(f"{asked.nodes} nodes, {asked.workers} workers; all started within {time.perf_counter() - started:.0f} s")
            print(name)
            reference = results[name]["Flower's FedAvg"]
            for contender, seconds in results[name].items():
                print(f"  {contender:24} {seconds:8.4f} s a round, {seconds / reference:6.3f} of Flower's FedAvg")
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
