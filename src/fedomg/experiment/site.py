"""Where the data are: training phases go to the method's trainer, views to evaluation."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.params import FlatModel, Tensors
from fedomg.core.records import FIT, Broadcast, ClientState, Reply, Tally
from fedomg.core.rng import Streams, seeded_global_generator
from fedomg.data.examples import Examples
from fedomg.data.federation import Client, Federation
from fedomg.data.packing import pack, unpack
from fedomg.engine.vectorised import Turn
from fedomg.engine.worker import Blueprint
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.evaluate import ADAPTED, GLOBAL, PERSONALISED, POOLED, VALIDATION, VIEW, tally
from fedomg.local.alike import Apart
from fedomg.local.loop import Stage, Task, Visit
from fedomg.local.together import Fitted, Stack, fit_together
from fedomg.local.trainer import Predictor, Trainer, load
from fedomg.models import build_model
from fedomg.models.freeze import freeze_batchnorm
from fedomg.models.options import ModelOptions
from fedomg.models.split import SplitModel


class LocalSite:
    """Serves every client of a federation with one model to work in."""

    def __init__(self, config: Config, federation: Federation, trainer: Trainer[Any]) -> None:
        self.model = initial_model(config, federation, trainer)
        self._task = Task(self.model, config.local, config.rounds)
        self._trainer = trainer
        self._clients = {client.id: client for client in federation.everyone}
        self._config = config
        self._buffers = config.server.buffers

    def handle(self, phase: str, client: int, broadcast: Broadcast, state: ClientState, row: Tensor | None) -> tuple[Reply, ClientState]:
        visit = self._visit(phase, Turn(client, broadcast, state, row))
        with _noise(visit):
            if phase.startswith(VIEW):
                return self._view(phase, visit), state
            return self._trainer.run(phase, visit, self._buffers, row)

    def trains(self, phase: str) -> bool:
        return phase in (FIT, ADAPTED)

    def handle_together(self, phase: str, turns: Sequence[Turn]) -> list[tuple[Reply, ClientState]]:
        visits, stack = [self._visit(phase, turn) for turn in turns], Stack(self.model, len(turns))
        arrived, stages = [], []
        for row, visit in enumerate(visits):
            with _noise(visit):
                load(visit)
                arrived.append(self._trainer.arrive(visit) if phase == FIT else {})
                stages.append(self._trainer.stages(visit))
                stack.put(row)
        fitted, replies = self._fit_together(stages, visits, stack), []
        for row, (turn, visit) in enumerate(zip(turns, visits, strict=True)):
            stack.take(row)
            with _noise(visit):
                if phase == FIT:
                    replies.append(self._trainer.conclude(visit, arrived[row], *fitted[row], self._buffers, turn.row))
                else:
                    replies.append((self._tested(visit, self._trainer.predictor(visit), visit.client.test), turn.state))
        return replies

    def _fit_together(self, stages: Sequence[Sequence[Stage]], visits: Sequence[Visit], stack: Stack) -> list[Fitted]:
        try:
            if type(self._trainer).fit is not Trainer.fit or type(self._trainer).run is not Trainer.run:
                raise Apart("it trains in a way of its own")
            return fit_together(stages, visits, stack)
        except Apart as reason:
            what = f'method "{self._config.method}" on model "{self._config.model.name}"'
            raise UserError(f'engine.name = "vectorised" cannot train {what}: {reason}; set engine.name to "inline"') from reason

    def _visit(self, phase: str, turn: Turn) -> Visit:
        streams = Streams(self._config.seed, turn.broadcast.round, phase, turn.client)
        return Visit(self._task, self._clients[turn.client], turn.broadcast, turn.state, streams)

    def _view(self, phase: str, visit: Visit) -> Reply:
        examples = _examples(phase, visit.client)
        return self._tested(visit, self._predictors[phase](self, visit), examples) if len(examples) else _untested(visit)

    def _tested(self, visit: Visit, predictor: Predictor, examples: Examples) -> Reply:
        visit.model.module.eval()
        return Reply(visit.client.id, tallies=tally(predictor, examples, self._config.evaluate.batch_size))

    def _global(self, visit: Visit) -> Predictor:
        load(visit, personal=False)
        return self._trainer.global_predictor(visit)

    def _validated(self, visit: Visit) -> Predictor:
        return self._global(visit) if self._trainer.answers_globally else self._personalised(visit)

    def _personalised(self, visit: Visit) -> Predictor:
        load(visit)
        self._trainer.personalise(visit)
        return self._trainer.predictor(visit)

    def _adapted(self, visit: Visit) -> Predictor:
        load(visit)
        self._trainer.fit(visit)
        return self._trainer.predictor(visit)

    _predictors: ClassVar[dict[str, Callable[["LocalSite", Visit], Predictor]]] = {
        GLOBAL: _global,
        VALIDATION: _validated,
        PERSONALISED: _personalised,
        ADAPTED: _adapted,
    }


def _noise(visit: Visit) -> AbstractContextManager[None]:
    """What draws from torch's global generator draws the client's own numbers."""
    streams = visit.streams
    return seeded_global_generator(streams.seed, "noise", streams.round, streams.phase, streams.client)


def _untested(visit: Visit) -> Reply:
    return Reply(visit.client.id, tallies={POOLED: Tally()})


def _examples(phase: str, client: Client) -> Examples:
    return client.validation if phase == VALIDATION else client.test


def initial_model(config: Config, federation: Federation, trainer: Trainer[Any]) -> FlatModel:
    with seeded_global_generator(config.seed, "initialisation"):
        split = _split_model(config.model, federation)
        return FlatModel(trainer.module(split).to(federation.device), trainer.group_of)


def _split_model(options: ModelOptions, federation: Federation) -> SplitModel:
    if options.frozen_backbone:  # the inputs are features, and the head is that of the whole model
        whole = build_model(options.name, federation.dataset.made_from, federation.classes)
        return SplitModel(nn.Identity(), whole.head)
    model = build_model(options.name, federation.shape, federation.classes, options.weights)
    if options.frozen_batchnorm and not freeze_batchnorm(model):
        raise UserError(f'model.frozen_batchnorm has no effect on model "{options.name}", which has no BatchNorm; remove it')
    return model


def blueprint(config: Config, federation: Federation) -> Blueprint:
    """What another process makes the same site from."""
    plain, tensors = pack(federation)
    return Blueprint(f"{__name__}:rebuild", json.dumps({"config": config.table(), "federation": plain}), tensors)


def description(config: Config, federation: Federation) -> str:
    """What a process that shares nothing with this one makes the same site from, where it has the same files."""
    table = {**config.table(), "engine": {}}
    if config.data.root is not None:
        table["data"] = {**table["data"], "root": str(Path(config.data.root).absolute())}
    return json.dumps({"config": table, "fingerprint": fingerprint(federation)})


def fingerprint(federation: Federation) -> str:
    """Equal for equal names, labels, domains and holdings. Inputs are large and not looked at."""
    plain, tensors = pack(federation)
    del plain["skipped"], tensors["inputs"]
    found = hashlib.sha256(json.dumps([plain, federation.shape]).encode())
    for _, tensor in sorted(tensors.items()):
        found.update(tensor.cpu().numpy().tobytes())
    return found.hexdigest()


def rebuild(configuration: str, tensors: Tensors) -> LocalSite:
    described = json.loads(configuration)
    config = make_config(described["config"])
    method = methods.build(config.method, config.local, config.aggregator)
    return LocalSite(config, unpack(described["federation"], tensors), method.trainer)
