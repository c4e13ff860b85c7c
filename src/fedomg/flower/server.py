"""The server end of a federation of machines: the round loop of every other run, over the nodes of a SuperLink."""

import json
import logging
import secrets
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.engine.base import Engine
from fedomg.engine.flower.arrivals import FailedError, reading
from fedomg.engine.flower.engine import FlowerEngine
from fedomg.engine.flower.messages import SiteOf
from fedomg.engine.states import ClientStates
from fedomg.experiment.config import Config
from fedomg.experiment.experiment import Experiment
from fedomg.experiment.files import make_folder, write_atomically
from fedomg.experiment.runner import Note, run
from fedomg.flower.client import CENSUS, read_json, write_json
from fedomg.flower.holdings import HOLDINGS, Holdings, together

RUN = "federation.json"
logger = logging.getLogger("flwr")


@dataclass(frozen=True)
class Patience:
    """How many nodes there must be within how many seconds, and how long an exchange with them may take."""

    nodes: int
    wait: float
    deadline: float


def serve(grid: Grid, config: Config, out: Path, patience: Patience, resume: bool = False) -> dict[str, Any]:
    """Runs what is left of an experiment on the nodes of a grid, and returns its result."""
    return run(config, out, resume, note=logger.warning, build=partial(open_experiment, grid, config, out, patience))


def open_experiment(grid: Grid, config: Config, out: Path, patience: Patience, note: Note) -> Experiment:
    if methods.parse(config.method).entry.kind == "centralised":
        raise UserError(f'method "{config.method}" has one client that holds all data, which a federation of machines never does')
    if config.model.frozen_backbone:
        raise UserError(
            "model.frozen_backbone makes features once for a whole run, and a node has a new process for each message; remove it"
        )
    federation, hosts = together(_census(grid, config, _nodes(grid, patience), patience.deadline, note), config.target)
    numbers = {client.name: client.id for client in federation.everyone}
    called = {number: f"{number} ({name})" for name, number in numbers.items()}
    sent = {"config": {**config.table(), "engine": {}}, "numbers": numbers, "run": _name_of_run(out)}
    site = SiteOf("", json.dumps(sent))  # a node knows by itself how to make one

    def open_engine(parameters: int) -> Engine:
        return FlowerEngine(grid, hosts, site, parameters, ClientStates(), deadline=patience.deadline, note=note, called=called.__getitem__)

    return Experiment(config, federation, note=note, engine=open_engine)


def _nodes(grid: Grid, patience: Patience) -> list[int]:
    """A clear end after a stated time, where Flower's own strategies wait for ever."""
    end = time.monotonic() + patience.wait
    while len(nodes := sorted(grid.get_node_ids())) < patience.nodes:
        if time.monotonic() >= end:
            raise UserError(
                f"{len(nodes)} of {patience.nodes} nodes have come within {patience.wait:g} seconds; start the missing SuperNodes"
            )
        time.sleep(0.2)
    return nodes


def _census(grid: Grid, config: Config, nodes: list[int], deadline: float, note: Note) -> dict[int, Holdings]:
    """What each node holds. A node that cannot say is named and left out."""
    asked: dict[str, int] = {}
    for node in nodes:
        message = Message(write_json({**config.table(), "engine": {}}), node, f"query.{CENSUS}", ttl=deadline)
        asked |= dict.fromkeys(grid.push_messages([message]), node)
    silent = dict.fromkeys(asked.values(), f"no reply within {deadline:g} seconds")
    found = {}
    for reply in _replies(grid, set(asked), deadline):
        node = asked[reply.metadata.reply_to_message_id]
        try:
            found[node] = _holdings(reply)
            del silent[node]
        except FailedError as error:
            silent[node] = str(error)
    for node, why in silent.items():
        note(f"the run goes on without node {node}: {why}")
    return dict(sorted(found.items()))


def _holdings(reply: Message) -> Holdings:
    with reading(reply) as content:
        said = read_json(content)
        if "refused" in said:
            raise FailedError(said["refused"])
        return HOLDINGS.validate_python(said)


def _replies(grid: Grid, waiting: set[str], deadline: float) -> list[Message]:
    end = time.monotonic() + deadline
    found: list[Message] = []
    while waiting and time.monotonic() < end:
        arrived = list(grid.pull_messages(waiting))
        waiting -= {message.metadata.reply_to_message_id for message in arrived}
        found += arrived
        if waiting:
            time.sleep(0.2)
    return found


def _name_of_run(out: Path) -> str:
    """Under which nodes keep their clients' memory: drawn once a run folder, and kept in it."""
    path = out / RUN
    if not path.exists():
        make_folder(out)
        write_atomically(path, json.dumps({"run": secrets.token_hex(8)}).encode())
    name: str = json.loads(path.read_bytes())["run"]
    return name
