"""Hand-made runs in the layout of a run folder."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("fedomg", deadline=None)  # shared machines stall
settings.load_profile("fedomg")


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing that a test decodes lands in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


Record = dict[str, Any]
WriteRun = Callable[..., Path]


def make_record(
    round_: int, *, target: float | None, validation: Mapping[str, tuple[float, int]] | None = None, omg: bool = False
) -> Record:
    """A record with all fields; accuracy of the sources is 0.1 above that of the target."""
    source = None if target is None else target + 0.1
    domains = {name: {"accuracy": source, "loss": 1.0 / round_ if round_ else 2.3, "n": 50} for name in ("noto", "blob")}
    views = {
        "global": {"accuracy": source, "loss": 1.0, "n": 100, "domains": domains},
        "target": {"accuracy": target, "loss": 1.5, "n": 80, "domains": {"line": {"accuracy": target, "loss": 1.5, "n": 80}}},
        "worst_group": {"accuracy": source, "loss": 1.1, "n": 50, "group": "noto", "groups": domains},
    }
    clients = {
        str(client): {
            "name": name,
            "n": 50,
            "steps": 4,
            "loss": 1.0,
            "norm": 0.5,
            "cosine": 0.7 - 0.9 * client,
            "reference_weight": 0.5,
            "omg_weight": 0.25 + 0.5 * client if omg else None,
        }
        for client, name in enumerate(("noto", "blob"))
    }
    server: dict[str, Any] = {"converged": True, "step_norm": 0.5, "reference_norm": 0.4, "mean_pair_cosine": 0.2, "conflict_ratio": 0.1}
    server["pairs"] = {"clients": [0, 1], "inner_product": [[0.1]], "cosine": [[0.1 * round_]], "divergence": [[0.5]]}
    return {
        "round": round_,
        "cohort": [0, 1] if round_ else [],
        "dropped": [],
        "views": views,
        "validation": {name: {"accuracy": accuracy, "loss": 1.0, "n": n} for name, (accuracy, n) in (validation or {}).items()},
        "clients": clients if round_ else {},
        "server": server | ({"objective": -0.1, "gap": 1e-12} if omg else {"objective": None, "gap": None}) if round_ else None,
        "bytes": {"down": 1000, "up": 1000},
        "seconds": {"train": 0.5, "aggregate": 0.1, "evaluate": 0.2, "total": 0.8},
    }


@pytest.fixture
def write_run(tmp_path: Path) -> WriteRun:
    """A function that writes a run folder: accuracy on the target grows by 0.1 a round from `start`."""

    def write(
        name: str,
        method: str = "fedavg",
        target: str | None = "line",
        seed: int = 0,
        rounds: int = 3,
        start: float = 0.1,
        settings: str = "",
        records: list[Record] | None = None,
        result: Mapping[str, Any] | None = None,
        dataset: str = "emoji",
        view: str = "target",
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        made = [
            make_record(round_, target=round(start + 0.1 * round_, 3), validation={"noto": (0.3 + 0.1 * round_, 10)}, omg="omg" in method)
            for round_ in range(rounds + 1)
        ]
        for one in made:
            one["views"][view] = one["views"].pop("target")
        lines = [json.dumps(record) for record in (made if records is None else records)]
        (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        identity = {"method": method, "dataset": dataset, "target": target, "seed": seed, "rounds": rounds}
        extra = {"config_hash": "abc123", "versions": {"fedomg": "0.1.0", "torch": "2.13.0"}, **(result or {})}
        (folder / "result.json").write_text(json.dumps(identity | extra), encoding="utf-8")
        (folder / "config.toml").write_text(f"seed = {seed}\nrounds = {rounds}\n{settings}", encoding="utf-8")
        return folder

    return write


@pytest.fixture
def record() -> Callable[..., Record]:
    """`make_record`, for tests that need single records."""
    return make_record
