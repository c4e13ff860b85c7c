"""Opens the engine that a configuration asks for."""

import os
from functools import partial
from importlib.util import find_spec
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedomg.core.errors import UserError
from fedomg.core.processes import Spawned
from fedomg.data.federation import Federation
from fedomg.engine.auto import AutoEngine
from fedomg.engine.base import Engine
from fedomg.engine.inline import InlineEngine
from fedomg.engine.pool import Note, PoolEngine
from fedomg.engine.states import ClientStates
from fedomg.engine.vectorised import VectorisedEngine
from fedomg.experiment.config import Config
from fedomg.experiment.sampling import cohort_size
from fedomg.experiment.site import LocalSite, blueprint, description
from fedomg.local.trainer import Trainer

TOGETHER = 32


def open_engine(
    config: Config, federation: Federation, trainer: Trainer[Any], parameters: int, note: Note, share: int | None = None
) -> Engine:
    options, states = config.engine, ClientStates(config.engine.states * 2**20)
    rows = cohort_size(len(federation.clients), config.server.participation)
    workers = min(rows, share or cores() if options.workers == "auto" else options.workers)
    start_pool = partial(open_pool, config, federation, parameters, rows, workers, states, note)
    if options.name == "flower":
        return _flower(config, federation, parameters, workers, states)
    if options.name == "pool" or (options.name == "auto" and options.workers != "auto" and workers > 1):
        return start_pool()
    site = LocalSite(config, federation, trainer)
    if options.name == "vectorised":
        sizes = {client.id: len(client.train) for client in federation.everyone}
        return VectorisedEngine(site, parameters, sizes, options.together or TOGETHER, states, federation.device)
    inline = InlineEngine(site, parameters, states, federation.device)
    if options.name == "inline" or workers == 1 or federation.device.type != "cpu":
        return inline
    return AutoEngine(inline, start_pool, note)


def open_pool(
    config: Config,
    federation: Federation,
    parameters: int,
    rows: int,
    workers: int,
    states: ClientStates,
    note: Note,
    kind: type[BaseProcess] = Spawned,
) -> PoolEngine:
    sizes = {client.id: len(client.train) + len(client.test) for client in federation.everyone}
    return PoolEngine(blueprint(config, federation), parameters, rows, sizes, workers, states, note, kind)


def _flower(config: Config, federation: Federation, parameters: int, workers: int, states: ClientStates) -> Engine:
    """A node of Flower's simulation for each client."""
    require_flower()
    from fedomg.engine.flower.engine import FlowerEngine
    from fedomg.engine.flower.messages import SiteOf
    from fedomg.engine.flower.simulation import Simulation

    simulation = Simulation(len(federation.everyone), workers)
    hosts = {client.id: node for client, node in zip(federation.everyone, simulation.nodes, strict=True)}
    site = SiteOf("fedomg.experiment.remote:open_site", description(config, federation))
    return FlowerEngine(simulation.grid, hosts, site, parameters, states, simulation.check, simulation.close)


def require_flower() -> None:
    missing = [name for package, name in (("flwr", "Flower"), ("ray", "Ray")) if find_spec(package) is None]
    if missing:
        raise UserError(f"engine.name = \"flower\" needs {' and '.join(missing)}: pip install 'fedomg[flower]'")


def cores() -> int:
    """The processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_of(name: str) -> torch.device:
    """The device, where this machine has it."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f'engine.device = "{name}": torch finds no CUDA device here; set it to "cpu", or install a CUDA build of torch')
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f'engine.device = "{name}": this machine has {torch.cuda.device_count()} CUDA devices, numbered from 0')
    return device
