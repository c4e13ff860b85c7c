"""What runs take of the memory: bounded by the update matrix, the same after many rounds, the same for many clients."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory from /proc")


def _measure(name: str, out: Path, *numbers: int) -> Any:
    command = [sys.executable, "-m", "tests.experiment.memory", name, str(out), *map(str, numbers)]
    answer = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=300)
    return json.loads(answer.stdout)


def test_nothing_grows_over_200_rounds(tmp_path: Path) -> None:
    after = _measure("growth", tmp_path)
    assert len(after) == 200
    assert after[-1] - after[50] < 2 * 2**20


def test_the_server_holds_the_matrix_and_four_vectors(tmp_path: Path) -> None:
    found = _measure("server", tmp_path)
    clients, parameters = found["clients"], found["parameters"]
    assert parameters > 2_000_000
    assert found["bytes"] <= (clients + 4) * parameters * 4 + 8 * clients**2
    assert found["bytes"] > clients * parameters * 2, "half the matrix: part of it may lie where others have been"


def test_ten_thousand_clients_take_the_memory_of_a_hundred(tmp_path: Path) -> None:
    few, many = _measure("cohort", tmp_path / "few", 100), _measure("cohort", tmp_path / "many", 10_000)
    on_disk = sum(path.stat().st_size for path in (tmp_path / "many" / "checkpoint").glob("client-*"))
    assert on_disk > 80 * 2**20
    assert many - few < 60 * 2**20  # of which 40 are 9,900 more entries in the lists of clients and domains
