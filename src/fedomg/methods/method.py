"""A method is a value: a trainer for the clients, a coordinator and an aggregator for the server."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from fedomg.local.options import LocalOptions
from fedomg.local.trainer import Trainer
from fedomg.server.aggregator import Aggregator
from fedomg.server.coordinator import Coordinator
from fedomg.server.weighting import Samples, Weighting


@dataclass(frozen=True)
class Method:
    name: str
    trainer: Trainer[Any]
    coordinator: Coordinator[Any]
    aggregator: Aggregator


@dataclass(frozen=True)
class Entry:
    """A method as the registry knows it, before it is combined with a rule.

    `personalised_every` is how often its personalised view is taken by default: where that is costly, only after the last round.
    `refusal` is why it does not compose with the OMG rule, where it does not.
    `needs_body` says that it trains, shares or looks into the body in ways that features made once cannot replace.
    `individual` is why the server must see what each client sends: empty where sums of it, weighted by clients themselves, suffice.
    """

    name: str
    summary: str
    citation: str
    kind: Literal["federated", "centralised"] = "federated"
    composes: bool = True
    refusal: str = "it has one client, whose update OMG would only rescale"
    local: type[LocalOptions] = LocalOptions
    trainer: Callable[[Any], Trainer[Any]] = Trainer
    coordinator: Callable[[Any], Coordinator[Any]] = Coordinator
    weighting: Callable[[Any], Weighting] = Samples
    personalised_every: int | Literal["last"] = 1
    needs_body: bool = False
    individual: str = ""
