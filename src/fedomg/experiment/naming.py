"""Folders named so that a reader sees what is in them."""

import re
from collections.abc import Mapping
from typing import Any

from fedomg.experiment.config import Config

LONGEST = 24
NAMED_ANYWAY = ("method", "dataset", "target", "seed")


def folder_name(config: Config, settings: Mapping[str, Any] | None = None) -> str:
    """What is run, those of some settings that are short, and the start of the configuration's hash: the name of this run alone."""
    told = {key: str(value) for key, value in (settings or {}).items() if key not in NAMED_ANYWAY}
    values = [f"{key.rpartition('.')[2]}={value}" for key, value in told.items() if len(value) <= LONGEST]
    parts = (config.method, config.dataset, config.target, *values, f"seed{config.seed}", config.hash()[:6])
    return "-".join(re.sub(r"[^\w.+=-]+", ".", part) for part in parts if part)
