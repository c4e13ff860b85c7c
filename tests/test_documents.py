"""What the documents show is run."""

import re
from pathlib import Path

import torch

from fedomg.experiment.config import load_config

ROOT = Path(__file__).parents[1]


def _blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_drop_in_use_of_the_readme_runs() -> None:
    (code,) = _blocks("README.md", "python")
    assert len(code.strip().splitlines()) <= 10
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    model = names["model"]
    assert isinstance(model, torch.nn.Linear)
    assert model.weight.isfinite().all()


def test_every_configuration_shown_is_valid(tmp_path: Path) -> None:
    documents = ["README.md", *(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
    shown = [block for document in documents for block in _blocks(document, "toml")]
    assert shown
    for block in shown:
        path = tmp_path / "shown.toml"
        path.write_text(block, encoding="utf-8")
        load_config(path)


def test_every_file_that_the_documents_link_to_exists() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
