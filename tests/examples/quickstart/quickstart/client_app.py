"""A client as Flower's quick start writes it, with nothing of fedomg; it misbehaves in the rounds that the file beside its images names."""

import json
import time
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    model = nn.Linear(3, 2)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    inputs = torch.eye(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.functional.cross_entropy(model(inputs), torch.tensor([0, 1, 1]))
    loss.backward()
    optimizer.step()
    metrics: dict[str, Any] = {"train_loss": loss.item(), "num-examples": len(inputs)}
    arrays = _spoilt(ArrayRecord(model.state_dict()), _fault(message, context), message.metadata.created_at + message.metadata.ttl)
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)


def _fault(message: Message, context: Context) -> str | None:
    file = Path(f"{context.node_config['data-root']}.faults")
    planned: dict[str, str] = json.loads(file.read_text()) if file.exists() else {}
    return planned.get(str(message.content.config_records["config"]["server-round"]))


def _spoilt(arrays: ArrayRecord, fault: str | None, deadline: float) -> ArrayRecord:
    whole = arrays["weight"]
    if fault == "raises":
        raise RuntimeError("the app's own\nfault")
    if fault == "comes late":
        time.sleep(deadline + 1 - time.time())
    if fault == "is not finite":
        arrays["weight"] = Array(whole.numpy() * float("nan"))
    if fault == "is misshapen":
        arrays["weight"] = Array(whole.numpy().reshape(3, 2))
    if fault == "is truncated":
        arrays["weight"] = Array(whole.dtype, whole.shape, whole.stype, whole.data[: len(whole.data) - 8])
    return arrays
