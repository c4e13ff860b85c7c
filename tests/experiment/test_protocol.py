"""Leave one domain out: what is held out takes part in nothing but its own test; three ways of reading a run stand in its result."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.copies import PACS, PACS_CLASSES, write_folders
from tests.pictures import EACH, Pictures

from fedomg.data.deal import deal
from fedomg.data.federation import Federation
from fedomg.experiment import select
from fedomg.experiment.config import Config, make_config
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.experiment.runner import run

TARGET = "blue"


def _config(**keys: Any) -> Config:
    table = {
        "method": "fedavg+omg",
        "dataset": "tests.pictures:Pictures",
        "target": TARGET,
        "rounds": 3,
        "model": {"name": "tiny_resnet"},
        "data": {"validation": 0.25, "augment": "feddg-ga"},
        "local": {"lr": 0.05, "batch_size": 4},
        "engine": "inline",
    }
    return make_config({**table, **keys})


def _poisoned(config: Config, floats: bool) -> tuple[Federation, Federation]:
    """The federation as it is, and the one whose target holds rubbish."""
    dataset = build_federation(config).dataset
    inputs, labels = dataset.inputs.clone(), dataset.labels.clone()
    if floats:
        dataset = replace(dataset, inputs=dataset.inputs.float() / 255, mean=(), std=(), augmentation="none")
        inputs = dataset.inputs.clone()
    held_out = dataset.domains == dataset.domain_names.index(TARGET)
    assert int(held_out.sum()) == EACH
    inputs[held_out] = torch.nan if floats else torch.randint(0, 256, inputs[held_out].shape, dtype=torch.uint8)
    labels[held_out] = (labels[held_out] + 1 + torch.arange(EACH) % 2) % len(Pictures.classes)
    return tuple(deal(found, TARGET, config.data, config.seed) for found in (dataset, replace(dataset, inputs=inputs, labels=labels)))  # type: ignore[return-value]


DEALS: list[dict[str, Any]] = [
    {},
    {"clients_per_domain": 2},
    {"partition": "iid", "clients": 3},
    {"partition": "dirichlet", "clients": 3, "alpha": 1.0, "least": 4},
    {"partition": "domain-label", "clients_per_domain": 2, "alpha": 5.0, "least": 4},
    {"partition": "domain-mix", "clients": 4, "mix": 0.5},
]


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("data", DEALS, ids=lambda data: data.get("partition", str(data)))
def test_rubbish_in_the_held_out_domain_changes_no_bit_of_training_and_selection(data: dict[str, Any], floats: bool) -> None:
    config = _config(data={"validation": 0.25, "augment": None if floats else "feddg-ga", **data}, rounds=2)
    runs = []
    for federation in _poisoned(config, floats):
        trial = Experiment(config, federation)
        state, records = trial.initial_state(), []
        for _ in range(config.rounds):
            state, record = trial.advance(state)
            records.append(record)
        runs.append((state, records))
    (clean, clean_records), (poisoned, poisoned_records) = runs
    assert torch.equal(clean.shared, poisoned.shared)
    assert all(torch.equal(value, poisoned.buffers[name]) for name, value in clean.buffers.items())
    for one, other in zip(clean_records, poisoned_records, strict=True):
        assert one["views"]["target"] != other["views"]["target"]  # the poison is real
        for key in ("validation", "clients", "server"):
            assert json.dumps(one[key]) == json.dumps(other[key])
        assert one["views"].get("global") == other["views"].get("global")  # parts can be too small for tests
    assert select.selected_round(clean_records) == select.selected_round(poisoned_records)


def test_selected_last_and_oracle_stand_in_the_result(tmp_path: Path) -> None:
    result = run(_config(rounds=4), tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    target = [record["views"]["target"]["accuracy"] for record in records]
    validation = [sum(d["accuracy"] * d["n"] for d in record["validation"].values()) for record in records]
    chosen = max(range(1, 5), key=lambda round_: (validation[round_], -round_))
    assert result["selection"] == {"rule": "validation", "round": chosen}
    assert result["selected"]["target"] == target[chosen]
    assert result["final"]["target"] == target[4]
    assert result["best"]["target"] == max(target[1:])
    assert result["mean_last_10"]["target"] == pytest.approx(sum(target[1:]) / 4)


def test_with_groups_the_worst_one_selects() -> None:
    def record(round_: int, everyone: float, groups: tuple[float, ...]) -> dict[str, Any]:
        numbers = {str(index): {"accuracy": accuracy, "n": 5} for index, accuracy in enumerate(groups)}
        return {"round": round_, "views": {}, "validation": {"d": {"accuracy": everyone, "n": 10}}, "validation_groups": numbers}

    records = [record(1, 0.9, (1.0, 0.0)), record(2, 0.6, (0.6, 0.5)), record(3, 0.7, (0.9, 0.4))]
    assert select.selected_round(records) == ("validation", 2)
    assert select.selected_round([record(1, 0.2, ()), record(2, 0.3, ())]) == ("validation", 2)
    assert select.validation_score(record(1, 0.9, (1.0, 0.0))) == 0.0


@pytest.mark.parametrize("target", PACS)
def test_every_domain_of_pacs_can_be_held_out(tmp_path: Path, target: str) -> None:
    write_folders(tmp_path / "PACS", PACS, PACS_CLASSES, each=4)
    table = {"dataset": "pacs", "target": target, "data": {"root": str(tmp_path), "size": 8, "validation": 0.25, "clients_per_domain": 2}}
    federation = build_federation(make_config(table))
    assert [client.name for client in federation.clients] == [f"{name}-{part}" for name in PACS if name != target for part in (1, 2)]
    assert federation.target is not None
    assert len(federation.target.test) == 28
    assert federation.dataset.augmentation == "feddg-ga"
