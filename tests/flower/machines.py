"""A federation of machines in this process: a node for each domain, with a folder of its own."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from PIL import Image
from tests.grids import LocalGrid

from fedomg.experiment.config import Config, make_config
from fedomg.experiment.experiment import Record
from fedomg.flower.client import client_app
from fedomg.flower.server import Patience

DOMAINS = ("chalk", "ink", "paint", "target")
CLASSES = ("cat", "dog")
PATIENCE = Patience(nodes=4, wait=0.5, deadline=20)


def draw(folder: Path, domain: str, classes: tuple[str, ...] = CLASSES) -> None:
    random = np.random.default_rng(len(domain))
    for label, name in enumerate(classes):
        (folder / domain / name).mkdir(parents=True)
        for picture in range(6):
            pixels = random.integers(0, 100, (8, 8, 3), dtype=np.uint8)
            pixels[4 * label : 4 * label + 4] += 100
            Image.fromarray(pixels).save(folder / domain / name / f"{picture}.png")


class Machines(LocalGrid):
    """A node for each domain, with a folder of its own. `lost` nodes never reply."""

    def __init__(self, root: Path) -> None:
        super().__init__(client_app(), len(DOMAINS))
        self.lost: set[int] = set()
        self.folders = [root / f"node-{place}" for place in range(len(DOMAINS))]
        for place, folder in enumerate(self.folders):
            self.configure({"data-root": str(folder / "images"), "state-dir": str(folder / "memory")}, place)
        for folder, domain in zip(self.folders, DOMAINS, strict=True):
            draw(folder / "images", domain)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for reply in super().pull_messages(message_ids) if reply.metadata.src_node_id not in self.lost]


def configure(method: str = "fedomg", rounds: int = 3, **data: Any) -> Config:
    return make_config(
        {
            "method": method,
            "dataset": "folder",
            "target": "target",
            "rounds": rounds,
            "data": {"size": 8, "validation": 0.0, "test": 0.0, **data},
            "local": {"lr": 0.05, "batch_size": 4},
            "model": {"name": "tiny_resnet"},
            "evaluate": {"adapted": "never"},
        }
    )


def records(out: Path) -> list[Record]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{**line, "seconds": None} for line in lines]


def weights(out: Path) -> bytes:
    (file,) = (out / "checkpoint").glob("server-*.safetensors")
    return file.read_bytes()
