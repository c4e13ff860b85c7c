"""A plain Flower app, as its quick start writes one, for `bench_rounds.py`: needs `pip install 'flwr[simulation]>=1.41,<1.43'`.

It runs in Flower's simulation, in a process of its own. The server app waits for a word on the pipe before each round, so that its rounds
can be timed in turn with other contenders'. Everything is told through one JSON file named in the environment, which also reaches the
processes that the simulation starts.
"""

from __future__ import annotations

import json
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedomg.models import build_model

SETTINGS = "BENCH_FLOWER_SETTINGS"


def settings() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(os.environ[SETTINGS]).read_text(encoding="utf-8"))
    return found


def train(message: Message, context: Context) -> Message:
    told = settings()
    client = int(context.node_config["partition-id"])
    images, labels = (torch.from_numpy(np.load(f"{told['folder']}/{name}-{client}.npy")) for name in ("images", "labels"))
    model = build_model(told["model"], tuple(told["shape"]), 10)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=told["rate"])
    order = torch.randperm(len(labels))
    for rows in order.split(told["batch"])[: len(labels) // told["batch"]]:
        optimizer.zero_grad()
        F.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})})
    return Message(content, reply_to=message)


client_app = ClientApp()
client_app.train()(train)


def serve(connection: Connection) -> None:
    """Runs the simulation until the other end of the pipe is closed."""
    told = settings()
    server_app = ServerApp()

    def main(grid: Grid, context: Context) -> None:
        state = build_model(told["model"], tuple(told["shape"]), 10).state_dict()
        while len(nodes := list(grid.get_node_ids())) < told["clients"]:
            time.sleep(0.1)
        connection.send("ready")
        while True:
            try:
                connection.recv()
            except EOFError:
                return
            connection.send(_round(grid, nodes, state))

    server_app.main()(main)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": told["cores"], "log_to_driver": False}}
    run_simulation(server_app, client_app, told["clients"], backend_config=resources)


def _round(grid: Grid, nodes: list[int], state: dict[str, torch.Tensor]) -> int:
    """FedAvg of equally large clients from the same weights as always; how many replied."""
    content = RecordDict({"arrays": ArrayRecord(state), "config": ConfigRecord({"round": 1})})
    replies = list(grid.send_and_receive([Message(content, node, MessageType.TRAIN) for node in nodes]))
    arrays = [reply.content.array_records["arrays"].to_torch_state_dict() for reply in replies if not reply.has_error()]
    for name in state:
        torch.stack([found[name] for found in arrays]).mean(dim=0)
    return len(arrays)
