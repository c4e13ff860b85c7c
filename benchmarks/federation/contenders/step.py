"""A client with a model and a folder of images: it reads them all, and takes one step on one of them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from PIL import Image
from torch import Tensor

from fedomg.models import build_model


def step(message: Message, context: Context) -> Message:
    told: dict[str, Any] = dict(message.content.config_records["config"])
    images, labels, classes = _read(Path(str(context.node_config["data-root"])), told["size"])
    model = build_model(told["model"], tuple(images.shape[1:]), classes)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=told["lr"])
    F.cross_entropy(model(images[:1]), labels[:1]).backward()
    optimizer.step()
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})})
    return Message(content, reply_to=message)


def _read(root: Path, size: int) -> tuple[Tensor, Tensor, int]:
    names = sorted({folder.name for folder in root.glob("*/*")})
    files = sorted(root.glob("*/*/*"))
    pictures = [np.asarray(Image.open(file).convert("RGB").resize((size, size))) for file in files]
    images = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255
    return images, torch.tensor([names.index(file.parent.name) for file in files]), len(names)
