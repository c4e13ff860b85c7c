"""One experiment, round by round: the only round loop there is, for every method and every engine."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.params import FlatModel, Tensors, is_finite
from fedomg.core.records import Broadcast, Reply
from fedomg.data.deal import deal
from fedomg.data.federation import Federation, pooled
from fedomg.engine.base import Engine
from fedomg.engine.pool import Note
from fedomg.experiment import evaluate
from fedomg.experiment.backbone import Watch, unwatched
from fedomg.experiment.config import Config
from fedomg.experiment.engines import device_of, open_engine
from fedomg.experiment.evaluate import ADAPTED, GLOBAL, PERSONALISED, VALIDATION
from fedomg.experiment.sampling import sample_cohort
from fedomg.experiment.shelf import Shelf
from fedomg.experiment.site import initial_model
from fedomg.experiment.state import ServerState
from fedomg.methods.method import Method
from fedomg.omg import gram_matrix
from fedomg.server.aggregator import Aggregate, merge_buffers
from fedomg.server.coordinator import Phase
from fedomg.server.diagnostics import agreement, pair_matrices, pair_means, pairs
from fedomg.server.optimizer import ServerOptimizer

Record = dict[str, Any]


class Experiment:
    """Everything that a configuration describes, built once. The state goes in and out of its methods.

    `share` is how many of the machine's cores it may use where others run beside it. `engine` makes an engine for so many parameters,
    where it is not the configuration that says which.
    """

    def __init__(
        self,
        config: Config,
        federation: Federation,
        method: Method | None = None,
        note: Note = lambda text: None,
        share: int | None = None,
        engine: Callable[[int], Engine] | None = None,
    ) -> None:
        self.config = config
        self.federation = federation.to(device_of(config.engine.device))
        self._method = method or methods.build(config.method, config.local, config.aggregator)
        self._trainer = self._method.trainer
        self.parameters = len(self._initial_model().shared)
        if not self.parameters:
            raise UserError(f'method "{config.method}" shares no parameter of model "{config.model.name}"; choose a model with a body')
        self._optimizer = ServerOptimizer(config.server.lr, config.server.momentum)
        opened = None if engine is None else engine(self.parameters)
        self.engine = opened or open_engine(config, self.federation, self._trainer, self.parameters, note, share)

    def _initial_model(self) -> FlatModel:
        """Made anew each time it is asked for: the server keeps no copy of what it only starts from."""
        return initial_model(self.config, self.federation, self._trainer)

    def initial_state(self) -> ServerState:
        model = self._initial_model()
        buffers = {} if self.config.server.buffers == "local" else model.initial_buffers
        clients = len(self.federation.clients)
        coordinated = self._method.coordinator.initial(clients, self.parameters)
        weighted = self._method.aggregator.initial(clients, self.config.rounds)
        state = ServerState(0, model.shared, buffers, coordinator=coordinated, aggregator=weighted)
        return state.to(self.federation.device)

    def untrained(self, state: ServerState) -> Record:
        """The record of round 0."""
        return {
            "round": 0,
            "cohort": [],
            "dropped": [],
            **self._evaluated(state, _Clock(), {"down": 0, "up": 0}),
            "clients": {},
            "server": None,
        }

    def advance(self, state: ServerState) -> tuple[ServerState, Record]:
        """One round: training phases, aggregation, the step, the views."""
        number, clock, traffic = state.round + 1, _Clock(), {"down": 0, "up": 0}
        cohort = sample_cohort(len(self.federation.clients), self.config.server.participation, self.config.seed, number)
        coordinated, fitted = state.coordinator, _Fitted([], torch.empty(0, 0), torch.empty(0, 0))
        for phase in self._method.coordinator.phases(number, cohort):
            rows = self.engine.matrix(len(phase.clients)) if phase.updates else None
            with clock("train"):
                replies = self._exchange(phase, number, state, coordinated, rows, traffic)
            with clock("aggregate"):
                arrived = _finite(replies, rows)
                if phase.updates:
                    fitted = arrived
                if arrived.replies:
                    coordinated = self._method.coordinator.collect(phase.name, arrived.replies, arrived.updates, coordinated)
        with clock("aggregate"):
            state, clients, server = self._step(state, fitted, number, coordinated)
        taken = {reply.client for reply in fitted.replies}
        record = {"round": number, "cohort": cohort, "dropped": [client for client in cohort if client not in taken]}
        record |= {**self._evaluated(state, clock, traffic), "clients": clients, "server": server}
        return state, record

    def _exchange(
        self, phase: Phase, number: int, state: ServerState, coordinated: Tensors, rows: Tensor | None, traffic: dict[str, int]
    ) -> list[Reply]:
        extras = self._method.coordinator.extras
        messages = {c: Broadcast(number, state.shared, state.buffers, extras(phase.name, c, coordinated)) for c in phase.clients}
        replies = self.engine.exchange(phase.name, messages, rows)
        traffic["down"] += sum(message.nbytes for message in messages.values())
        traffic["up"] += sum(reply.nbytes for reply in replies)
        return replies

    def _step(self, state: ServerState, fitted: "_Fitted", number: int, coordinated: Tensors) -> tuple[ServerState, Record, Record | None]:
        """The new state, and what is recorded of the clients and of the server. Without a single usable update the model stays."""
        if not fitted.replies:
            return replace(state, round=number, coordinator=coordinated), {}, None
        aggregate, aggregator_state = self._method.aggregator.direction(fitted.gram, fitted.updates, fitted.replies, state.aggregator)
        step, optimizer_state = self._optimizer.step(aggregate.direction, state.optimizer)
        averaged = self.config.server.buffers == "average"
        new = ServerState(
            round=number,
            shared=state.shared + step,
            buffers=merge_buffers(state.buffers, fitted.replies, aggregate.reference) if averaged else state.buffers,
            optimizer=optimizer_state,
            coordinator=coordinated,
            aggregator=aggregator_state,
        )
        return new, *self._diagnostics(fitted, aggregate, step)

    def _diagnostics(self, fitted: "_Fitted", aggregate: Aggregate, step: Tensor) -> tuple[Record, Record]:
        found, gram = aggregate.combination, fitted.gram
        step_norm = float(torch.linalg.vector_norm(step, dtype=torch.float64))
        agreed = agreement(gram, self._products(fitted, aggregate, step), step_norm)
        paired = pairs(gram)
        shown = pair_matrices(paired, [reply.client for reply in fitted.replies]) if self._shows_pairs(len(gram)) else None
        weights = [None] * len(fitted.replies) if found.weights is None else found.weights.tolist()
        per_client = zip(fitted.replies, agreed.norms.tolist(), agreed.cosines.tolist(), aggregate.reference.tolist(), weights, strict=True)
        clients = {
            str(reply.client): {
                "name": self.federation.clients[reply.client].name,
                "n": reply.samples,
                "steps": reply.steps,
                "loss": reply.loss,
                "norm": norm,
                "cosine": cosine,
                "reference_weight": reference,
                "omg_weight": weight,
            }
            for reply, norm, cosine, reference, weight in per_client
        }
        reference_norm = float((aggregate.reference @ gram @ aggregate.reference).clamp(min=0).sqrt())
        server = {
            "objective": found.objective,
            "gap": found.gap,
            "converged": found.converged,
            "step_norm": step_norm,
            "reference_norm": reference_norm,
            **pair_means(paired),
            "pairs": shown,
        }
        return clients, server

    def _products(self, fitted: "_Fitted", aggregate: Aggregate, step: Tensor) -> Tensor:
        """The inner products of the updates with the step, from their Gram matrix where the step is made of nothing else."""
        if self._optimizer.momentum:
            return (fitted.updates @ step).double().cpu()
        return self._optimizer.lr * (fitted.gram @ aggregate.combination.coefficients)

    def _shows_pairs(self, clients: int) -> bool:
        return 1 < clients <= self.config.evaluate.pairs_up_to

    def _evaluated(self, state: ServerState, clock: "_Clock", traffic: dict[str, int]) -> Record:
        """The views that are due, and what the round has cost so far."""
        with clock("evaluate"):
            views, validation, evaluation_bytes = self._views(state)
        return {
            "views": views,
            **validation,
            "generalisation_gap": evaluate.generalisation_gap(validation["validation"], views),
            "bytes": {**traffic, "evaluation": evaluation_bytes},
            "seconds": clock.read(),
        }

    def _views(self, state: ServerState) -> tuple[Record, Record, int]:
        tested = tuple(client.id for client in self.federation.clients if len(client.test))
        validated = tuple(client.id for client in self.federation.clients if len(client.validation))
        sent = 0

        @cache
        def ask(phase: str, clients: tuple[int, ...]) -> list[Reply]:
            nonlocal sent
            extras = self._method.coordinator.extras
            messages = {c: Broadcast(state.round, state.shared, state.buffers, extras(phase, c, state.coordinator)) for c in clients}
            sent += sum(message.nbytes for message in messages.values())
            return self.engine.exchange(phase, messages)

        def due(view: str) -> bool:
            return self.config.evaluate.due(view, state.round, self.config.rounds)

        personal = PERSONALISED if self._trainer.personalises else GLOBAL
        target = () if self.federation.target is None else (self.federation.target.id,)
        plan: dict[str, tuple[str, tuple[int, ...], Callable[[Sequence[Reply]], Record | None]]] = {
            "global": (GLOBAL, tested, evaluate.view_record),
            "personalised": (personal, tested, evaluate.view_record),
            "adapted": (ADAPTED, tested, evaluate.view_record),
            "target": (GLOBAL, target, evaluate.view_record),
            "worst_group": (GLOBAL, tested, evaluate.worst_group_record),
        }
        views = {view: summarise(ask(phase, clients)) for view, (phase, clients, summarise) in plan.items() if clients and due(view)}
        validation = evaluate.validation_record(ask(VALIDATION, validated) if due("validation") else [])
        return {view: record for view, record in views.items() if record is not None}, validation, sent


@dataclass(frozen=True)
class _Fitted:
    """The usable replies of a phase, with their rows and the Gram matrix of these."""

    replies: list[Reply]
    updates: Tensor
    gram: Tensor


def _finite(replies: list[Reply], rows: Tensor | None) -> _Fitted:
    """Leaves out every client that sent anything that is not finite."""
    sound = [reply.usable and all(is_finite(value) for value in (*reply.buffers.values(), *reply.extras.values())) for reply in replies]
    if rows is None:
        return _Fitted([reply for reply, fine in zip(replies, sound, strict=True) if fine], torch.empty(0, 0), torch.empty(0, 0))
    gram = gram_matrix(rows)
    kept = (torch.tensor(sound) & gram.diagonal().isfinite()).nonzero().flatten()
    if len(kept) == len(replies):
        return _Fitted(replies, rows, gram)
    return _Fitted([replies[i] for i in kept.tolist()], rows[kept], gram[kept][:, kept])


def build_federation(config: Config, watch: Watch = unwatched, shelf: Shelf | None = None) -> Federation:
    dataset = (shelf or Shelf()).examples(config, watch)
    federation = deal(dataset, config.target, config.data, config.seed)
    return pooled(federation) if methods.parse(config.method).entry.kind == "centralised" else federation


class _Clock:
    """Seconds by activity since its making."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._spent = {"train": 0.0, "aggregate": 0.0, "evaluate": 0.0}

    @contextmanager
    def __call__(self, activity: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._spent[activity] += time.perf_counter() - start

    def read(self) -> dict[str, float]:
        return {**self._spent, "total": time.perf_counter() - self._start}
