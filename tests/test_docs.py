"""What the documentation shows is run as it stands."""

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.test_cli import fedomg

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_bring_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # taken back after the test, and with it what the command adds
    module = blocks("bring-your-own.md", "python")[0]
    assert len([line for line in module.splitlines() if line.strip()]) <= 10
    Path("mine.py").write_text(module, encoding="utf-8")
    (config,) = blocks("bring-your-own.md", "toml")
    Path("mine.toml").write_text(config, encoding="utf-8")
    (commands,) = blocks("bring-your-own.md", "console")
    for line in commands.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "fedomg"
        done = fedomg(*arguments)
        assert done.returncode == 0, done.stderr
    (result,) = Path("runs").glob("*mine.data*/result.json")
    assert json.loads(result.read_text(encoding="utf-8"))["final"]["global"] > 0.6  # a third by chance


def test_a_model_in_two_parts() -> None:
    import torch

    names: dict[str, object] = {}
    exec(blocks("bring-your-own.md", "python")[1], names)
    model = names["model"]
    assert callable(model)
    assert model((3, 8, 8), 4)(torch.zeros(2, 3, 8, 8)).shape == (2, 4)
