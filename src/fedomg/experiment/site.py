"""Where the data are: training phases go to the method's trainer, views to evaluation."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.params import FlatModel, Tensors
from fedomg.core.records import Broadcast, ClientState, Reply, Tally
from fedomg.core.rng import Streams, seeded_global_generator
from fedomg.data.examples import Examples
from fedomg.data.federation import Client, Federation
from fedomg.data.packing import pack, unpack
from fedomg.engine.worker import Blueprint
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.evaluate import ADAPTED, GLOBAL, PERSONALISED, POOLED, VALIDATION, VIEW, tally
from fedomg.local.loop import Task, Visit
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
        self._seed = config.seed
        self._buffers = config.server.buffers
        self._batch_size = config.evaluate.batch_size

    def handle(self, phase: str, client: int, broadcast: Broadcast, state: ClientState, row: Tensor | None) -> tuple[Reply, ClientState]:
        streams = Streams(self._seed, broadcast.round, phase, client)
        visit = Visit(self._task, self._clients[client], broadcast, state, streams)
        with seeded_global_generator(self._seed, "noise", broadcast.round, phase, client):
            if phase.startswith(VIEW):
                return self._view(phase, visit), state
            return self._trainer.run(phase, visit, self._buffers, row)

    def _view(self, phase: str, visit: Visit) -> Reply:
        examples = _examples(phase, visit.client)
        if not len(examples):
            return Reply(visit.client.id, tallies={POOLED: Tally()})
        predictor = self._predictors[phase](self, visit)
        visit.model.module.eval()
        return Reply(visit.client.id, tallies=tally(predictor, examples, self._batch_size))

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
