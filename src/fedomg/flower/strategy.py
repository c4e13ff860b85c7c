"""FedOMG as a Flower strategy. Clients are any ClientApp that returns a state dict and `num-examples`; they need nothing of fedomg."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedomg import omg
from fedomg.engine.flower.arrivals import LATE, told
from fedomg.flower.replies import Format, UnusableReplyError

logger = logging.getLogger("flwr")
Sound = TypeVar("Sound")


class TooFewNodesError(Exception):
    """Not as many nodes as a round needs have come within the deadline."""


class FedOMG(FedAvg):
    """Flower's FedAvg with the invariant direction in the place of the mean (Nguyen et al., ICLR 2025).

    It takes all of FedAvg's arguments, and of its own:

    - `kappa`: radius of the search around the mean, as a share of its norm; with 0 the strategy is FedAvg.
    - `server_lr`: what the direction is multiplied with.
    - `rescale`: divide the direction by 1 + kappa².
    - `deadline`: the most seconds that a round waits for nodes to come, and then for their replies.

    A reply with an error, with arrays of another layout or values that are not finite, or without a positive number of examples is
    left out, and so is a node that does not reply in time: `dropped` says for each round which nodes, and why. Where nothing is left the
    model stays as it is. An evaluation leaves out the same way, and says so in the log. Buffers that are integers, as BatchNorm's
    counters, take the largest value and stay integers.
    """

    def __init__(
        self,
        *args: Any,
        kappa: float = 0.5,
        server_lr: float = 1.0,
        rescale: bool = True,
        deadline: float = 3600.0,
        **keys: Any,
    ) -> None:
        for name, value, least in (("kappa", kappa, 0.0), ("server_lr", server_lr, -math.inf), ("deadline", deadline, 0.0)):
            if not math.isfinite(value) or value < least:
                raise ValueError(f"{name} must be a finite number" + (f" of at least {least:g}" if least == 0 else "") + f", not {value}")
        super().__init__(*args, **keys)
        self.kappa = kappa
        self.server_lr = server_lr
        self.rescale = rescale
        self.deadline = deadline
        self.dropped: dict[int, dict[int, str]] = {}
        self._global = ArrayRecord()
        self._timeout = deadline
        self._asked: list[Message] = []

    def summary(self) -> None:
        super().summary()
        logger.info("\t└──> FedOMG: kappa %g | server_lr %g | rescale %s | deadline %g s", *self._settings(), self.deadline)

    def _settings(self) -> tuple[float, float, bool]:
        return self.kappa, self.server_lr, self.rescale

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """As FedAvg's; `timeout` is the strategy's deadline where it is not given."""
        self.dropped = {}
        self._timeout = self.deadline if timeout is None else timeout
        return super().start(grid, initial_arrays, num_rounds, self._timeout, train_config, evaluate_config, evaluate_fn)

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> list[Message]:
        self._wait_for_nodes(grid, max(self.min_available_nodes, self.min_train_nodes))
        self._global = arrays
        return self._timely(super().configure_train(server_round, arrays, config, grid))

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        if self.fraction_evaluate > 0:
            self._wait_for_nodes(grid, max(self.min_available_nodes, self.min_evaluate_nodes))
        return self._timely(super().configure_evaluate(server_round, arrays, config, grid))

    def _timely(self, messages: Iterable[Message]) -> list[Message]:
        """A message that its node has not fetched by the deadline is void: a node that was late would stay behind for ever."""
        self._asked = list(messages)
        for message in self._asked:
            message.metadata.ttl = self._timeout
        return self._asked

    def _wait_for_nodes(self, grid: Grid, needed: int) -> None:
        """FedAvg itself would wait for ever."""
        end = time.monotonic() + self.deadline
        while (found := len(list(grid.get_node_ids()))) < needed:
            if time.monotonic() >= end:
                raise TooFewNodesError(f"{found} of the {needed} nodes that a round needs have come within {self.deadline:g} seconds")
            time.sleep(min(1.0, self.deadline / 10))

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        model = self._global.to_torch_state_dict()
        read = Format(model, self.arrayrecord_key, self.weighted_by_key).trained
        trained, self.dropped[server_round] = self._sort_out(read, replies, f"round {server_round}")
        if not trained:
            return None, None
        kappa, server_lr, rescale = self._settings()
        new = omg.aggregate(model, [t.state for t in trained], [t.weight for t in trained], kappa, server_lr, rescale)
        metrics = _with_common_metrics([t.metrics for t in trained])
        return ArrayRecord(new), self.train_metrics_aggr_fn(metrics, self.weighted_by_key)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        read = Format({}, self.arrayrecord_key, self.weighted_by_key).tested
        tested, _ = self._sort_out(read, replies, f"the evaluation of round {server_round}")
        return self.evaluate_metrics_aggr_fn(_with_common_metrics(tested), self.weighted_by_key) if tested else None

    def _sort_out(self, read: Callable[[RecordDict], Sound], replies: Iterable[Message], what: str) -> tuple[list[Sound], dict[int, str]]:
        """The sound replies by the order of nodes (that of arrival is random, and a sum depends on it), and why others are left out."""
        asked = {message.metadata.message_id: message.metadata.dst_node_id for message in self._asked}
        sound: dict[int, Sound] = {}
        dropped = dict.fromkeys(asked.values(), LATE)
        for reply in replies:  # an error that the SuperLink reports does not name the node as its source
            node = asked.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
            dropped.pop(node, None)
            try:
                if reply.has_error():
                    raise UnusableReplyError(told(reply.error))
                sound[node] = read(reply.content)
            except UnusableReplyError as reason:
                dropped[node] = str(reason)
        for node, why in dropped.items():
            logger.warning("%s goes on without node %d: %s", what, node, why)
        return [sound[node] for node in sorted(sound)], dropped

    def configure_fit(self, *args: Any, **keys: Any) -> NoReturn:
        """What Flower's secure aggregation would call."""
        raise TypeError(
            "FedOMG cannot be used with secure aggregation: it matches the clients' individual updates, and secure aggregation shows the "
            "server only their sum; use FedAvg there"
        )


def _with_common_metrics(sent: list[MetricRecord]) -> list[RecordDict]:
    """The metrics that all clients have sent in one form: only these have a mean."""

    def form(value: Any) -> int | None:
        return len(value) if isinstance(value, list) else None

    common = [name for name, value in sent[0].items() if all(name in m and form(m[name]) == form(value) for m in sent)]
    return [RecordDict({"metrics": MetricRecord({name: metrics[name] for name in common})}) for metrics in sent]
