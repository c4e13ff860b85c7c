"""Imports go one way."""

import ast
from pathlib import Path

import pytest

import fedomg

ROOT = Path(fedomg.__file__).parent
LAYERS = {
    "omg": set[str](),
    "core": set[str](),
    "models": {"core"},
    "data": {"core"},
    "server": {"omg", "core", "models", "data"},
    "local": {"omg", "core", "models", "data"},
    "engine": {"core"},
    "methods": {"omg", "core", "models", "data", "local", "server"},
    "experiment": {"omg", "core", "models", "data", "local", "server", "methods", "engine"},
    "flower": {"omg", "core", "data", "methods", "engine", "experiment"},
    "report": {"omg", "core", "models", "data", "local", "server", "methods", "engine", "experiment"},
    "paper": {"omg", "core", "models", "data", "experiment", "report"},
    "cli": {"core", "data", "methods", "experiment", "report", "paper"},
}


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fedomg":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedomg."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedomg.")}
    return found


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_those_below_it(layer: str) -> None:
    files = [ROOT / f"{layer}.py"] if layer == "cli" else list((ROOT / layer).rglob("*.py"))
    assert files
    for path in files:
        assert _imported(path) <= LAYERS[layer] | {layer}, path


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {path.stem for path in ROOT.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts == LAYERS.keys() | {"__init__"}
