"""The client end of a federation of machines: a ClientApp for the images in its node's own folder.

The node's configuration names the folder (`data-root`) and where its clients' memory is kept (`state-dir`). All else comes with messages.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.engine.flower.messages import Request, from_bytes, to_bytes, write_replies
from fedomg.engine.flower.node import EXCHANGE, answer, work
from fedomg.experiment.config import make_config
from fedomg.experiment.site import LocalSite
from fedomg.flower.holdings import described, numbered, of_this_node
from fedomg.flower.memory import Memory

CENSUS = "census"
NUMBER = "number"
_RECORD, _ARRAY = "fedomg", "json"


def client_app() -> ClientApp:
    app = ClientApp()
    app.query(CENSUS)(_census)
    app.query(EXCHANGE)(_exchange)
    return app


def _census(message: Message, context: Context) -> Message:
    try:
        config = make_config(read_json(message.content))
        found: dict[str, Any] = asdict(described(of_this_node(config, _folder(context, "data-root"))))
    except UserError as error:
        found = {"refused": str(error)}
    return Message(write_json(found), reply_to=message)


def _exchange(message: Message, context: Context) -> Message:
    return Message(answer(message.content, lambda request: _serve(request, context)), reply_to=message)


def _serve(request: Request, context: Context) -> RecordDict:
    told = json.loads(request.site.configuration)
    config = make_config(told["config"])
    federation = numbered(of_this_node(config, _folder(context, "data-root")), told["numbers"])
    site = LocalSite(config, federation, methods.build(config.method, config.local, config.aggregator).trainer)
    memory = Memory(_folder(context, "state-dir"), told["run"])
    round = next(iter(request.broadcasts.values())).round
    numbers = {client: int(state.get(NUMBER, 0)) for client, state in request.states.items()}
    states = {client: memory.load(client, number) for client, number in numbers.items()}
    replies, rows, changed = work(site, request, {client: state or {} for client, state in states.items()})
    for client, state in changed.items():
        memory.save(client, numbers[client] + 1, round, state)
    kept = {client: {NUMBER: torch.tensor(numbers[client] + 1)} for client in changed}
    return write_replies(replies, rows, kept, lost=[client for client, state in states.items() if state is None])


def _folder(context: Context, key: str) -> Path:
    if key not in context.node_config:
        raise UserError(f"this node does not say which folder: start its SuperNode with --node-config '{key}=\"/a/folder\"'")
    return Path(str(context.node_config[key]))


def write_json(value: Any) -> RecordDict:
    return RecordDict({_RECORD: ArrayRecord({_ARRAY: from_bytes(json.dumps(value).encode())})})


def read_json(content: RecordDict) -> Any:
    return json.loads(to_bytes(content.array_records[_RECORD][_ARRAY]))
