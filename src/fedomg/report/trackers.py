"""Runs in other people's dashboards: TensorBoard, MLflow, Weights & Biases, each behind the same three calls.

A tracker reads what the run records and nothing else, so a run can be followed while it trains or sent long afterwards. Sent twice, or
continued after a break, a run stays one: TensorBoard drops the steps that are written again, the others find it by its identity, which is
derived from its folder and its configuration.
"""

import hashlib
import logging
import os
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Protocol

from fedomg.core.errors import UserError
from fedomg.core.names import known
from fedomg.experiment import select
from fedomg.experiment.config import flat

PROJECT = "fedomg"
Scalars = Mapping[str, float]


class Tracker(Protocol):
    module: ClassVar[str]
    """Of the package that it needs."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        pass

    def log(self, round: int, scalars: Scalars) -> None: ...

    def summarise(self, scalars: Scalars) -> None:
        """What is said of the run as a whole."""

    def close(self) -> None: ...


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Everything in a record that is one number, by its path; per client, domain and group as well as in the whole."""
    whole = {key: value for key, value in record.items() if key not in ("round", "cohort")}
    whole["dropped"] = len(record["dropped"])
    numbers = ((key.replace(".", "/"), select.number(value)) for key, value in flat(whole).items() if not isinstance(value, bool | list))
    return {key: value for key, value in numbers if value is not None}


def result_scalars(result: Mapping[str, Any]) -> dict[str, float]:
    tables = {rule: result[rule] for rule in ("selected", "final", "mean_last_10", "best")}
    found = {key.replace(".", "/"): select.number(value) for key, value in flat(tables).items()}
    return {key: value for key, value in found.items() if value is not None} | {"selected/round": float(result["selection"]["round"])}


class TensorBoard:
    """Event files in OUT/tensorboard."""

    module: ClassVar[str] = "torch.utils.tensorboard"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._writer = _require(TensorBoard).SummaryWriter(str(folder / "tensorboard"), purge_step=0)
        self._writer.add_text("configuration", "\n".join(f"    {key} = {value}" for key, value in settings.items()))
        self._round = 0

    def log(self, round: int, scalars: Scalars) -> None:
        self._round = round
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, round)

    def summarise(self, scalars: Scalars) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(f"result/{name}", value, self._round)

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run of the experiment `fedomg` where MLFLOW_TRACKING_URI says, by default in mlflow.db in the present folder."""

    module: ClassVar[str] = "mlflow"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        module = _require(MLflow)
        for name in ("mlflow", "alembic"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._metric = module.entities.Metric
        self._client = module.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db"))
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        identity = _identity(folder, settings)
        before = self._client.search_runs([experiment], f"tags.fedomg_run = '{identity}'")
        if before:
            self._client.delete_run(before[0].info.run_id)
        run = self._client.create_run(experiment, run_name=folder.name, tags={"fedomg_run": identity})
        self._run = run.info.run_id
        self._client.log_batch(self._run, params=[module.entities.Param(key, str(value)) for key, value in settings.items()])

    def log(self, round: int, scalars: Scalars) -> None:
        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[self._metric(name, value, now, round) for name, value in scalars.items()])

    def summarise(self, scalars: Scalars) -> None:
        self.log(0, {f"result/{name}": value for name, value in scalars.items()})

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandB:
    """A run of the project `fedomg`; offline in OUT/wandb unless WANDB_MODE says otherwise."""

    module: ClassVar[str] = "wandb"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        module = _require(WandB)
        self._run = module.init(
            project=PROJECT,
            name=folder.name,
            id=_identity(folder, settings),
            resume="allow",
            dir=str(folder),
            config=dict(settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=module.Settings(silent=True),
        )

    def log(self, round: int, scalars: Scalars) -> None:
        self._run.log(dict(scalars), step=round)

    def summarise(self, scalars: Scalars) -> None:
        self._run.summary.update({f"result/{name}": value for name, value in scalars.items()})

    def close(self) -> None:
        self._run.finish()


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


class Following:
    """The trackers of one run, opened with its first record, so that a run that is refused leaves nothing in them."""

    def __init__(self, names: Sequence[str], folder: Path, settings: Mapping[str, Any]) -> None:
        self._open = [TRACKERS[known("tracker", name, TRACKERS)] for name in dict.fromkeys(names)]
        for tracker in self._open:
            _require(tracker)
        self._folder, self._settings = folder, flat(settings)
        self._trackers: list[Tracker] = []

    def __enter__(self) -> "Following":
        return self

    def log(self, record: Mapping[str, Any]) -> None:
        if not self._trackers:
            self._trackers = [tracker(self._folder, self._settings) for tracker in self._open]
        for tracker in self._trackers:
            tracker.log(record["round"], scalars(record))

    def summarise(self, result: Mapping[str, Any]) -> None:
        for tracker in self._trackers:
            tracker.summarise(result_scalars(result))

    def __exit__(self, *_: object) -> None:
        for tracker in self._trackers:
            tracker.close()


def send(names: Sequence[str], folder: Path) -> int:
    """Sends a recorded run, finished or not; the number of its records."""
    run = select.read_run(folder)
    with Following(names, folder, run.config) as following:
        for record in run.records:
            following.log(record)
        if run.result:
            following.summarise(run.result)
    return len(run.records)


def _identity(folder: Path, settings: Mapping[str, Any]) -> str:
    text = "\n".join([str(folder.resolve()), *(f"{key}={settings[key]}" for key in sorted(settings))])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _require(tracker: type[Tracker]) -> Any:
    try:
        return import_module(tracker.module)
    except ImportError:
        package = tracker.module.split(".")[-1]
        raise UserError(f'tracking with {package} needs the package {package}: pip install "fedomg[track]"') from None
