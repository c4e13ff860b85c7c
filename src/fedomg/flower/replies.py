"""What a ClientApp must reply: a state dict of the global model's layout, and how many examples it was trained on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from torch import Tensor

from fedomg.core.imports import reason
from fedomg.core.params import is_finite


class UnusableReplyError(Exception):
    """Says why a reply is left out."""


@dataclass(frozen=True)
class Trained:
    """A sound reply."""

    state: dict[str, Tensor]
    weight: float
    metrics: MetricRecord


@dataclass(frozen=True)
class Format:
    """The global model's layout, and the names of the records."""

    model: Mapping[str, Tensor]
    arrays: str
    weight: str

    def trained(self, content: RecordDict) -> Trained:
        """Arrays may stand under any name where there is one record of them; so may metrics."""
        metrics = self.tested(content)
        state = self._state(_the_one("ArrayRecord", content.array_records, self.arrays))
        return Trained(state, self._weight(metrics), metrics)

    def tested(self, content: RecordDict) -> MetricRecord:
        metrics = _the_one("MetricRecord", content.metric_records, None)
        self._weight(metrics)
        return metrics

    def _weight(self, metrics: MetricRecord) -> float:
        if self.weight not in metrics:
            raise UnusableReplyError(f'its metrics lack "{self.weight}"')
        value = metrics[self.weight]
        if isinstance(value, list) or not math.isfinite(value) or value <= 0:
            raise UnusableReplyError(f'its "{self.weight}" is {value}, not a positive number')
        return float(value)

    def _state(self, record: ArrayRecord) -> dict[str, Tensor]:
        for missing in self.model.keys() - record.keys():
            raise UnusableReplyError(f'it lacks the array "{missing}"')
        for unknown in record.keys() - self.model.keys():
            raise UnusableReplyError(f'it has the array "{unknown}", which the global model lacks')
        return {name: self._array(name, record) for name in self.model}

    def _array(self, name: str, record: ArrayRecord) -> Tensor:
        expected = self.model[name]
        try:
            found = torch.from_numpy(record[name].numpy())
        except Exception as error:
            raise UnusableReplyError(f'its array "{name}" cannot be read: {reason(error)}') from None
        if found.shape != expected.shape:
            raise UnusableReplyError(f'its array "{name}" has the shape {tuple(found.shape)}, not {tuple(expected.shape)}')
        if found.is_floating_point() != expected.is_floating_point():
            raise UnusableReplyError(f'its array "{name}" is {found.dtype}, not {expected.dtype}')
        if not is_finite(found):
            raise UnusableReplyError(f'its array "{name}" is not finite')
        return found


Record = TypeVar("Record")


def _the_one(kind: str, records: Mapping[str, Record], preferred: str | None) -> Record:
    if preferred is not None and preferred in records:
        return records[preferred]
    if len(records) != 1:
        raise UnusableReplyError(f"it holds {len(records)} of {kind}, not one")
    return next(iter(records.values()))
