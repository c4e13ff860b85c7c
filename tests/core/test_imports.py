"""Import paths: what they lead to, and what is wrong with them."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedomg.core.errors import UserError
from fedomg.core.imports import check_import_path, import_object


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_installed_modules_and_nested_names() -> None:
    assert import_object("model", "collections:OrderedDict.fromkeys")("a") == {"a": None}


def test_modules_of_the_current_directory(here: Path) -> None:
    (here / "pack_a").mkdir()
    (here / "pack_a" / "inner.py").write_text("from pack_a import other\nvalue = other.value\n")
    (here / "pack_a" / "other.py").write_text("value = 7\n")
    assert import_object("model", "pack_a.inner:value") == 7


@pytest.mark.parametrize("path", [":", "a:", ":b", "a b:c", "a:b:c", "1a:b", "a.:b", "a:b-c", "a/b:c"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(UserError, match=r"is no import path: write package\.module:name"):
        check_import_path("model", path)


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("absent_b:x", "", "model absent_b:x: no module absent_b, neither in .* nor installed"),
        ("json.absent:x", "", "no module json.absent"),
        ("mod_b:valeu", "value = 1", 'no object of mod_b is called "valeu"; did you mean "value"'),
        ("mod_b:value.x", "value = 1", 'no object of mod_b is called "x"'),
        ("mod_b:x", "import absent_c", "importing mod_b fails: No module named 'absent_c'"),
        ("mod_b:x", "1 +", "importing mod_b fails: SyntaxError"),
        ("mod_b:x", "raise ValueError('two\\nlines')", "importing mod_b fails: ValueError: two lines"),
        ("mod_b:x", "assert False", "importing mod_b fails: AssertionError$"),
    ],
)
def test_mistakes_are_one_line(here: Path, path: str, content: str, message: str) -> None:
    (here / "mod_b.py").write_text(content)
    with pytest.raises(UserError, match=message) as refusal:
        import_object("model", path)
    assert "\n" not in str(refusal.value)
