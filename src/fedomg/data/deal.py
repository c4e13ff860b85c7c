"""From a data set and the `[data]` table to a federation."""

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedomg.core.errors import UserError
from fedomg.core.rng import generator
from fedomg.data import partition
from fedomg.data.dataset import TEST, Dataset
from fedomg.data.examples import Examples
from fedomg.data.federation import Client, Federation, Shares, by_domain, held_out, require_training_data, rows_of, source_domains
from fedomg.data.options import DOMAIN_SHIFT, LABEL_SHIFT, DataOptions, resolve


def deal(dataset: Dataset, target: str | None, options: DataOptions, seed: int) -> Federation:
    """Deals a data set as its options say; what they leave open follows from the number of domains."""
    single = len(dataset.domain_names) == 1
    if target is not None and single:
        raise UserError(f'target = "{target}": the data set has one domain, "{dataset.domain_names[0]}", so none can be held out; unset it')
    options = resolve(options, LABEL_SHIFT if single else DOMAIN_SHIFT)
    shares = Shares(_set(options.validation), _set(options.test))
    if options.partition == "domain":
        return by_domain(dataset, target, _set(options.clients_per_domain), shares, seed)
    sources = source_domains(dataset, target)
    parts = _by_domain_and_label(dataset, sources, options, seed) if options.partition == "domain-label" else None
    parts = parts or _by_label(dataset, sources, options, seed)
    clients = tuple(_client(dataset, number, name, rows, shares, seed) for number, (name, rows) in enumerate(parts))
    return Federation(dataset, clients, held_out(dataset, target, len(clients)))


def _set[T](value: T | None) -> T:
    """A value that `resolve` has filled in."""
    assert value is not None
    return value
