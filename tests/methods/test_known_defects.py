"""Defects of published code, each of which would turn a test red here, for every method that the matching rule composes with."""

from pathlib import Path

import pytest
import torch
from tests.support import run_rounds, tiny
from torch import nn

from fedomg import methods
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.experiment.runner import run
from fedomg.models.split import SplitModel

MATCHED = [name + methods.OMG_SUFFIX for name, entry in methods.ENTRIES.items() if entry.composes]
WEIGHTED_WITH_STATE = ["fedga", "fedga+omg", "mofedsam", "fediir+omg"]


def _normed(*_: object) -> SplitModel:
    """With two stages of maps, which StableFDG asks for."""
    maps = nn.Unflatten(1, (8, 2, 2)), nn.Conv2d(8, 8, kernel_size=1)
    body = nn.Sequential(nn.Linear(2, 32), nn.BatchNorm1d(32), nn.ReLU(), *maps, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return SplitModel(body, nn.Linear(8, 2), {"3": 8, "4": 8})


@pytest.fixture(autouse=True)
def _a_model_with_batchnorm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedomg.experiment.site.build_model", _normed)


def _experiment(name: str, *overrides: str) -> Experiment:
    config = tiny(name, *overrides)
    return Experiment(config, build_federation(config))


@pytest.mark.parametrize("name", MATCHED)
def test_clients_that_hardly_move_do_not_shrink_the_model(name: str) -> None:
    """A row is p (theta_u - theta) or theta_u - theta, never p theta_u - theta."""
    trial = _experiment(name, "local.lr=1e-9", *(["local.align_lr=1e-9"] if name.startswith("fedas") else []))
    start = trial.initial_state()
    after, record = trial.advance(start)
    assert record["dropped"] == []
    torch.testing.assert_close(after.shared, start.shared, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MATCHED)
def test_batchnorm_statistics_follow_the_clients_also_under_the_rule(name: str) -> None:
    plain, matched = (run_rounds(_experiment(method), 1)[0].buffers for method in (name.removesuffix(methods.OMG_SUFFIX), name))
    assert plain["body.1.running_mean"].any()
    assert plain.keys() == matched.keys()
    assert all(torch.equal(plain[buffer], matched[buffer]) for buffer in plain)


@pytest.mark.parametrize("name", MATCHED)
def test_any_number_of_clients_takes_part_at_full_weight(name: str) -> None:
    """Weights sum to one over those sampled, be they two or eight."""
    for participation, clients in ((0.25, 2), (1.0, 8)):
        _, records = run_rounds(_experiment(name, "data.clients_per_domain=2", f"server.participation={participation}"), 2)
        for record in records:
            found = record["clients"].values()
            assert len(found) == clients
            assert sum(client["reference_weight"] for client in found) == pytest.approx(1)
            assert sum(client["omg_weight"] for client in found) == pytest.approx(1)


@pytest.mark.parametrize("name", WEIGHTED_WITH_STATE)
def test_what_the_server_remembers_survives_a_restart(name: str, tmp_path: Path) -> None:
    config = tiny(name, "local.momentum=0.5")
    whole = run(config, tmp_path / "whole")

    def stop_after_the_second(record: dict[str, object]) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "broken", observe=stop_after_the_second)
    assert run(config, tmp_path / "broken", resume=True)["final"] == whole["final"]
    states = [next((tmp_path / name / "checkpoint").glob("server-*.safetensors")).read_bytes() for name in ("whole", "broken")]
    assert states[0] == states[1]
