"""A round of any of Flower's strategies, and a client for it that trains nothing. Imports no torch, so that neither do its clients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg


def echo(message: Message, context: Context) -> Message:
    """The model, each parameter moved by a little of its own: no other node sends the same, nor was it sent before."""
    factor = np.float32(1 + 1e-3 * (message.metadata.dst_node_id % 97 + 1))
    arrays = {name: Array(array.numpy() * factor) for name, array in message.content.array_records["arrays"].items()}
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def rounds_of(strategy: FedAvg, grid: Grid, arrays: ArrayRecord, config: ConfigRecord) -> Callable[[], None]:
    """A round as a strategy's `start` has it, without evaluation."""
    number = 0

    def round_() -> None:
        nonlocal arrays, number
        number += 1
        messages = strategy.configure_train(number, arrays, config, grid)
        new, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
        assert new is not None
        arrays = new

    return round_
