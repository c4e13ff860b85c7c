"""The client end of a federation of machines: a ClientApp for the images in its node's own folder.

The node's configuration names the folder (`data-root`), where its clients' memory is kept (`state-dir`), and how many worker processes
share the clients' work (`workers`, by default none: this process does it). All else comes with messages.
"""

import json
import logging
from contextlib import closing
from dataclasses import asdict
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.processes import copies_of_one
from fedomg.data.federation import Federation
from fedomg.engine.base import Engine
from fedomg.engine.flower.messages import Request, from_bytes, to_bytes, write_failure, write_replies
from fedomg.engine.flower.node import EXCHANGE, answer, in_process, work
from fedomg.engine.states import ClientStates
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.engines import open_pool
from fedomg.experiment.site import LocalSite
from fedomg.flower.alarm import OutOfTimeError, at_most
from fedomg.flower.holdings import described, numbered, of_this_node
from fedomg.flower.memory import Mark, Memory

CENSUS = "census"
MARK = "mark"
_RECORD, _ARRAY = "fedomg", "json"
IMPORTS = ("fedomg.experiment.site", "torch._dynamo")
"""What workers need, and what torch's optimizers import when they are first used."""
logger = logging.getLogger("flwr")


def client_app() -> ClientApp:
    app = ClientApp()
    app.query(CENSUS)(_census)
    app.query(EXCHANGE)(_exchange)
    return app


def _census(message: Message, context: Context) -> Message:
    try:
        _workers(context)
        config = make_config(read_json(message.content))
        found: dict[str, Any] = asdict(described(of_this_node(config, _folder(context, "data-root"))))
    except UserError as error:
        found = {"refused": str(error)}
    return Message(write_json(found), reply_to=message)


def _exchange(message: Message, context: Context) -> Message:
    """Nobody waits for a reply after the message's time, and a node works on one message after the other: so it turns to the next."""
    try:
        with at_most(message.metadata.ttl):
            content = answer(message.content, lambda request: _serve(request, context))
    except OutOfTimeError:
        text = f"its work has been broken off after {message.metadata.ttl:g} seconds"
        logger.warning(text)
        content = write_failure(refused=text)
    return Message(content, reply_to=message)


def _serve(request: Request, context: Context) -> RecordDict:
    told = json.loads(request.site.configuration)
    config = make_config(told["config"])
    workers = min(_workers(context), len(request.broadcasts))
    open_engine = partial(_pool, workers, copies_of_one(*IMPORTS)) if workers > 1 else _in_process
    federation = numbered(of_this_node(config, _folder(context, "data-root")), told["numbers"])
    memory = Memory(_folder(context, "state-dir"), told["run"])
    round = next(iter(request.broadcasts.values())).round
    marks = {client: Mark(*state[MARK].tolist()) if MARK in state else Mark() for client, state in request.states.items()}
    states = {client: memory.load(client, mark) for client, mark in marks.items()}
    with closing(open_engine(config, federation, request)) as engine:
        replies, rows, changed = work(engine, request, {client: state or {} for client, state in states.items()})
    kept = {client: {MARK: torch.tensor(memory.save(client, marks[client], round, state))} for client, state in changed.items()}
    return write_replies(replies, rows, kept, lost=[client for client, state in states.items() if state is None])


def _in_process(config: Config, federation: Federation, request: Request) -> Engine:
    return in_process(LocalSite(config, federation, methods.build(config.method, config.local, config.aggregator).trainer), request)


def _pool(workers: int, kind: type[BaseProcess], config: Config, federation: Federation, request: Request) -> Engine:
    clients = len(request.broadcasts)
    return open_pool(config, federation, request.parameters, clients, workers, ClientStates(), logger.warning, kind)


def _workers(context: Context) -> int:
    workers = context.node_config.get("workers", 1)
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise UserError(f"workers={json.dumps(workers)} in this node's --node-config is not a whole number of at least 1")
    return workers


def _folder(context: Context, key: str) -> Path:
    if key not in context.node_config:
        raise UserError(f"this node does not say which folder: start its SuperNode with --node-config '{key}=\"/a/folder\"'")
    return Path(str(context.node_config[key]))


def write_json(value: Any) -> RecordDict:
    return RecordDict({_RECORD: ArrayRecord({_ARRAY: from_bytes(json.dumps(value).encode())})})


def read_json(content: RecordDict) -> Any:
    return json.loads(to_bytes(content.array_records[_RECORD][_ARRAY]))
