"""How fast a round is: the engines beside a hand-written PyTorch loop, a Flower app, and the machine's own limit.

    python benchmarks/bench_rounds.py [--work cnn|resnet18] [--repeats 7] [--flower] [--small]

All contenders do the same work in one process tree, in turn, repeat by repeat, so that whatever else the machine does hits them alike:
ratios mean something here, seconds do not. The work: every client trains one local epoch on the same batches from the same weights by
SGD at batch 16, and the updates are averaged. `plain` is what one writes in ten lines, with as many threads as there are cores. The limit
is the rate of a float32 matrix product, measured in the same turns, over the multiply-adds that a training step of the network needs.

Afterwards: the weights of the engines against those of the plain loop; the seconds of a round outside training, by runs at 100 clients; and
the peak memory of each contender's process tree, each in a run of its own.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedomg.core.rng import Streams, seeded_global_generator
from fedomg.data.dataset import Dataset
from fedomg.data.examples import Examples, normalise
from fedomg.data.federation import Client, Federation
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.engines import cores
from fedomg.experiment.experiment import Experiment
from fedomg.experiment.runner import RunFolder
from fedomg.experiment.state import ServerState
from fedomg.models import build_model

BATCH, RATE, SEED = 16, 0.005, 0
NEVER = dict.fromkeys(("global", "personalised", "adapted", "target", "worst_group", "validation"), "never")


@dataclass(frozen=True)
class Work:
    model: str
    shape: tuple[int, int, int]
    clients: int
    images: int


WORKS = {"cnn": Work("cnn", (1, 28, 28), 20, 600), "resnet18": Work("resnet18", (3, 96, 96), 4, 64)}
SMALL = {"cnn": Work("cnn", (1, 28, 28), 4, 64), "resnet18": Work("resnet18", (3, 96, 96), 2, 16)}


# ------------------------------------------------------------------------------------------------------------------ the work


def federation(work: Work, held_out: int = 0) -> Federation:
    """Generated images: what is in them does not change what they cost."""
    draw = torch.Generator().manual_seed(SEED)
    each = work.images + held_out
    inputs = torch.randint(0, 256, (work.clients * each, *work.shape), dtype=torch.uint8, generator=draw)
    labels = torch.randint(0, 10, (len(inputs),), generator=draw)
    channels = work.shape[0]
    names = tuple(map(str, range(10)))
    dataset = Dataset(inputs, labels, torch.zeros_like(labels), names, ("all",), mean=(0.5,) * channels, std=(0.5,) * channels)
    clients = []
    for number, rows in enumerate(torch.arange(len(labels)).split(each)):
        train, test = Examples(dataset, rows[: work.images]), Examples(dataset, rows[work.images :])
        clients.append(Client(number, f"client-{number}", train, Examples(dataset, rows[:0]), test))
    return Federation(dataset, tuple(clients), None)


def config(work: Work, engine: str, precision: str = "float32", **keys: Any) -> Config:
    return make_config(
        {
            "method": "fedavg",
            "dataset": "mnist",
            "seed": SEED,
            "rounds": 1000,
            "model": {"name": work.model},
            "local": {"lr": RATE, "batch_size": BATCH, "precision": precision},
            "engine": {"name": engine},
            "evaluate": NEVER,
            **keys,
        }
    )


def batches(client: Client, round: int) -> list[Tensor]:
    """The batches of the local loop, drawn beforehand."""
    draw = Streams(SEED, round, "fit", client.id).generator("batches/fit/0")
    return list(torch.randperm(len(client.train), generator=draw).split(BATCH))[: len(client.train) // BATCH]


# --------------------------------------------------------------------------------------------------------------- contenders


class Plain:
    """What one writes without a framework."""

    def __init__(self, work: Work, people: Federation) -> None:
        self._people = people
        with seeded_global_generator(SEED, "initialisation"):
            self.model = in_the_usual_order(build_model(work.model, work.shape, 10))
        dataset = people.dataset
        self._inputs = normalise(dataset, dataset.inputs).contiguous()
        self.initial = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        self._plan = {client.id: batches(client, 1) for client in people.clients}

    def round(self) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for client in self._people.clients:
            self.model.load_state_dict(self.initial)
            self.model.train()
            optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
            for positions in self._plan[client.id]:
                rows = client.train.indices[positions]
                optimizer.zero_grad()
                F.cross_entropy(self.model(self._inputs[rows]), self._people.dataset.labels[rows]).backward()
                optimizer.step()
            for name, tensor in self.model.state_dict().items():
                total[name] = total[name] + tensor if name in total else tensor.clone()
        return {name: tensor / len(self._people.clients) for name, tensor in total.items()}


def in_the_usual_order(model: nn.Module) -> nn.Module:
    """The CNN as it is written everywhere, with the ReLU before the pooling."""
    body = model.body
    if isinstance(body, nn.Sequential):
        layers = list(body)
        for place in range(len(layers) - 1):
            if isinstance(layers[place], nn.MaxPool2d) and isinstance(layers[place + 1], nn.ReLU):
                layers[place], layers[place + 1] = layers[place + 1], layers[place]
        model.body = nn.Sequential(*layers)
    return model


class Flower:
    """The plain Flower app in its simulation, one client a core at a time."""

    def __init__(self, work: Work, people: Federation, folder: Path) -> None:
        told = {
            "folder": str(folder),
            "model": work.model,
            "shape": work.shape,
            "clients": work.clients,
            "batch": BATCH,
            "rate": RATE,
            "cores": cores(),
        }
        for client in people.clients:
            inputs, labels = client.train.batch(torch.arange(len(client.train)))
            np.save(folder / f"images-{client.id}.npy", inputs.contiguous().numpy())
            np.save(folder / f"labels-{client.id}.npy", labels.numpy())
        path = folder / "settings.json"
        path.write_text(json.dumps(told), encoding="utf-8")
        os.environ |= {"BENCH_FLOWER_SETTINGS": str(path), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
        self._connection, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=_serve_flower, args=(theirs,))
        self._process.start()
        theirs.close()
        self._connection.recv()
        self._clients = work.clients

    def round(self) -> None:
        self._connection.send("go")
        assert self._connection.recv() == self._clients

    def close(self) -> None:
        self._connection.close()
        self._process.join(30)
        if self._process.is_alive():
            self._process.terminate()


def _serve_flower(connection: Connection) -> None:
    importlib.import_module("flower_app").serve(connection)


class Engine:
    """One of ours: a whole round of the round loop, without views."""

    def __init__(self, settings: Config, people: Federation) -> None:
        self._experiment = Experiment(settings, people, note=print)
        self._start: ServerState = self._experiment.initial_state()
        self.last = self._start

    def round(self) -> None:
        self.last, record = self._experiment.advance(self._start)
        assert not record["dropped"]

    def state_dict(self) -> dict[str, Tensor]:
        model = self._experiment._initial_model()
        model.shared.copy_(self.last.shared)
        return {name: parameter.detach().clone() for name, parameter in model.module.named_parameters()}

    def close(self) -> None:
        self._experiment.engine.close()


# -------------------------------------------------------------------------------------------------------- the machine's limit


def multiply_adds(work: Work) -> int:
    """Of one training step a sample: forward, gradients of the weights, gradients of the inputs of all layers but the first."""
    model, counts = build_model(work.model, work.shape, 10), list[int]()

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counts.append(output[0].numel() * weight[0].numel() if isinstance(layer, nn.Conv2d) else weight.numel())

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    with torch.no_grad():
        model.eval()(torch.zeros(1, *work.shape))
    return 3 * sum(counts) - counts[0]


def matmul_rate(seconds: float = 0.5, size: int = 1024) -> float:
    """Multiply-adds a second of a float32 matrix product on all cores."""
    torch.set_num_threads(cores())
    left, right = torch.randn(size, size), torch.randn(size, size)
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        left @ right
        done += 1
    return done * size**3 / (time.perf_counter() - start)


# ------------------------------------------------------------------------------------------------------------------- reports

NAMES = ("plain", "inline", "pool", "pool bf16", "flower")
Contender = Plain | Engine | Flower


def open_contender(name: str, work: Work, people: Federation, stack: ExitStack) -> Contender:
    if name == "plain":
        return Plain(work, people)
    if name == "flower":
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return stack.enter_context(closing(Flower(work, people, folder)))
    engine, _, precision = name.partition(" ")
    return stack.enter_context(closing(Engine(config(work, engine, precision or "float32"), people)))


def timed(call: Callable[[], object]) -> float:
    torch.set_num_threads(cores())
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(work: Work, names: list[str], repeats: int) -> None:
    """Samples a second, ratios to the plain loop of the same repeat, and shares of the limit of the same repeat: medians."""
    people, needed = federation(work), multiply_adds(work)
    samples = work.clients * (work.images // BATCH) * BATCH
    with ExitStack() as stack:
        contenders = {name: open_contender(name, work, people, stack) for name in names}
        for contender in contenders.values():
            contender.round()
        rates: dict[str, list[float]] = {name: [] for name in names}
        limits: list[float] = []
        for _ in range(repeats):
            limits.append(matmul_rate() / needed)
            for name, contender in contenders.items():
                rates[name].append(samples / timed(contender.round))
        whole, worst = _distance(contenders)
    print(f"\n{work.model}: {work.clients} clients x {work.images} images {work.shape}, one epoch, batch {BATCH}, {cores()} cores")
    print(f"{needed / 1e6:.2f} million multiply-adds a sample and step; limit {statistics.median(limits):,.0f} samples/s")
    print(f"{'':12}{'samples/s':>12}{'to plain':>12}{'of the limit':>14}")
    for name, found in rates.items():
        ratio = statistics.median(own / plain for own, plain in zip(found, rates["plain"], strict=True))
        share = statistics.median(own / limit for own, limit in zip(found, limits, strict=True))
        print(f"{name:12}{statistics.median(found):12,.0f}{ratio:12.2f}{share:14.0%}")
    print(f"weights of the pool engine after the epoch: {whole:.1e} relative to those of the plain loop, {worst:.1e} in the worst tensor")


def _distance(contenders: dict[str, Contender]) -> tuple[float, float]:
    """Of all weights together, and of the tensor that differs most."""
    plain, pool = contenders["plain"], contenders["pool"]
    assert isinstance(plain, Plain)
    assert isinstance(pool, Engine)
    ours, theirs = pool.state_dict(), plain.round()
    squares = [(float((theirs[name] - own).square().sum()), float(own.square().sum())) for name, own in ours.items()]
    whole = math.sqrt(sum(apart for apart, _ in squares) / sum(size for _, size in squares))
    return whole, max(math.sqrt(apart / size) for apart, size in squares)


def outside_training(clients: int, epochs: int = 5) -> None:
    """What a round costs beside training, with all records, the checkpoint and the global view every round."""
    work = Work("cnn", (1, 28, 28), clients, 450)
    people = federation(work, held_out=150)
    for method in ("fedavg", "fedomg"):
        views = NEVER | {"global": 1}
        settings = config(work, "pool", method=method, rounds=3, evaluate=views)
        with tempfile.TemporaryDirectory() as out:
            records, spent = _run(settings, people, Path(out))
        train = statistics.median(record["seconds"]["train"] for record in records[1:])
        parts = {part: statistics.median(record["seconds"][part] for record in records[1:]) for part in ("aggregate", "evaluate")}
        whole = statistics.median(spent[1:])
        parts["records and checkpoint"] = whole - statistics.median(record["seconds"]["total"] for record in records[1:])
        beside = whole - train
        listed = ", ".join(f"{name} {seconds:.3f}" for name, seconds in parts.items())
        print(f"{method}, {clients} clients: training {train:.2f} s an epoch, beside it {beside:.3f} s ({listed})")
        print(f"    {beside / (beside + train):.1%} of a round of 1 epoch, {beside / (beside + epochs * train):.1%} of {epochs} epochs")


def _run(settings: Config, people: Federation, out: Path) -> tuple[list[dict[str, Any]], list[float]]:
    """The records, and the seconds of each round from one to the next."""
    folder, experiment = RunFolder(out, settings), Experiment(settings, people, note=print)
    records, spent = [], []
    with closing(experiment.engine):
        state, _ = folder.restore(experiment)
        for _ in range(settings.rounds):
            start = time.perf_counter()
            state, record = experiment.advance(state)
            records.append(folder.keep(experiment, state, record))
            spent.append(time.perf_counter() - start)
    return records, spent


def peak_memory(name: str, work: str, small: bool) -> float:
    """MiB of the tree of a process that runs this contender alone: proportional shares, so that shared memory counts once."""
    command = [sys.executable, __file__, "--work", work, "--only", name, *(["--small"] if small else [])]
    peak = 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, sum(_share(pid) for pid in _tree(process.pid)))
            time.sleep(0.05)
    return peak / 1024


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in children.read_text().split():
                yield from _tree(int(child))
    except OSError:
        return


def _share(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKS, default="cnn")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--clients", type=int, default=100, help="of the rounds whose cost beside training is measured")
    parser.add_argument("--flower", action="store_true", help="with the Flower app")
    parser.add_argument("--small", action="store_true", help="little work, to see that it runs")
    parser.add_argument("--only", choices=NAMES, help="two rounds of one contender, and nothing else")
    chosen = parser.parse_args()
    work = (SMALL if chosen.small else WORKS)[chosen.work]
    if chosen.only:
        with ExitStack() as stack:
            contender = open_contender(chosen.only, work, federation(work), stack)
            contender.round()
            contender.round()
        return
    names = [name for name in NAMES if name != "flower" or chosen.flower]
    compare(work, names, chosen.repeats)
    for name in names:
        print(f"peak memory of {name}: {peak_memory(name, chosen.work, chosen.small):,.0f} MiB")
    if chosen.work == "cnn":
        outside_training(4 if chosen.small else chosen.clients)


if __name__ == "__main__":
    main()
