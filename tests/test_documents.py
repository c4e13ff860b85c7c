"""What the documents show is run as it stands."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from tests.test_cli import fedomg

from fedomg.experiment.config import load_config
from fedomg.experiment.sweep import load_sweep

ROOT = Path(__file__).parents[1]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_drop_in_use_of_the_readme_runs() -> None:
    (code,) = blocks("README.md", "python")
    assert len(code.strip().splitlines()) <= 10
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    model = names["model"]
    assert isinstance(model, torch.nn.Linear)
    assert model.weight.isfinite().all()


def test_every_configuration_shown_is_valid(tmp_path: Path) -> None:
    documents = ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
    shown = [block for document in documents for block in blocks(document, "toml")]
    assert shown
    for block in shown:
        path = tmp_path / "shown.toml"
        path.write_text(block, encoding="utf-8")
        load_sweep(path) if "[sweep]" in block else load_config(path)


def test_the_label_shift_page_trains_all_rows_of_the_papers_first_table() -> None:
    (commands,) = blocks("docs/label-shift.md", "bash")
    looped = re.search(r"for method in (.*); do run \$method; run \$method\+omg; done", commands)
    tuned = re.search(r"for method in (.*); do run \$method --set (.*); done", commands)
    assert looped
    assert tuned
    runs: dict[str, list[str]] = {name: [] for method in looped[1].split() for name in (method, f"{method}+omg")}
    runs |= {name: [tuned[2]] for name in tuned[1].split()}
    rows = ("fedavg", "peravg", "fedrod", "fedpac", "fedbabu", "fedas", "fedavg+omg", "peravg+omg", "fedrod+omg", "fedbabu+omg")
    assert set(rows) <= runs.keys()
    for name, overrides in runs.items():
        config = load_config(ROOT / "examples" / "mnist.toml", [f"method={name}", *overrides])
        assert config.method == name
        assert (config.data.clients, config.data.alpha, config.server.participation) == (100, 0.1, 0.2)
        views = config.evaluate
        assert all(views.due(view, config.rounds, config.rounds) for view in ("global", "personalised", "adapted"))


def test_every_file_that_the_documents_link_to_exists() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_bring_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # taken back after the test, and with it what the command adds
    module = blocks("docs/bring-your-own.md", "python")[0]
    assert len([line for line in module.splitlines() if line.strip()]) <= 10
    Path("mine.py").write_text(module, encoding="utf-8")
    (config,) = blocks("docs/bring-your-own.md", "toml")
    Path("mine.toml").write_text(config, encoding="utf-8")
    (commands,) = blocks("docs/bring-your-own.md", "console")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "fedomg"
        done = fedomg(*arguments)
        assert done.returncode == 0, done.stderr
    (result,) = Path("runs").glob("*mine.data*/result.json")
    assert json.loads(result.read_text(encoding="utf-8"))["final"]["global"] > 0.6  # a third by chance


def test_a_model_in_two_parts() -> None:
    names: dict[str, object] = {}
    exec(blocks("docs/bring-your-own.md", "python")[1], names)
    model = names["model"]
    assert callable(model)
    assert model((3, 8, 8), 4)(torch.zeros(2, 3, 8, 8)).shape == (2, 4)
