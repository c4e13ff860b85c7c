"""Decoded pictures on disk: decoded once, found again by content, whole or absent, mapped and not copied."""

import multiprocessing
import os
import shutil
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
import torch
from tests.copies import PACS, PACS_CLASSES, paint, write_folders

from fedomg.core import cache
from fedomg.core.errors import UserError
from fedomg.core.params import nbytes
from fedomg.data import pictures
from fedomg.data.packing import pack, unpack
from fedomg.data.pictures import Size, load_pictures
from fedomg.engine.pool import PoolEngine
from fedomg.experiment.config import make_config
from fedomg.experiment.experiment import Experiment, build_federation

SIZE = Size(6, 4)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [paint(tmp_path / "set" / f"{n}.png", (10 * n, 0, 0)).name for n in range(5)]


def _load(tmp_path: Path, files: list[str], size: Size = SIZE) -> pictures.Pictures:
    return load_pictures(tmp_path / "set", files, size, tmp_path / "cache")


def _forbid(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def called(*arguments: object) -> None:
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(pictures, name, called)


def _entries(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache" / "pictures").iterdir() if path.is_dir() and path.name != "seen"]


def test_the_second_time_nothing_is_read(tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = _load(tmp_path, files)
    assert first.inputs.shape == (5, 3, 4, 6)
    assert first.inputs[:, 0, 2, 2].tolist() == [0, 10, 20, 30, 40]
    _forbid(monkeypatch, "_content")
    assert torch.equal(_load(tmp_path, files).inputs, first.inputs)


def test_a_copy_elsewhere_is_known_by_its_content(tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = _load(tmp_path, files)
    shutil.copytree(tmp_path / "set", tmp_path / "moved")
    _forbid(monkeypatch, "_decode")
    again = load_pictures(tmp_path / "moved", files, SIZE, tmp_path / "cache")
    assert again.file == first.file


def test_other_content_is_decoded_anew(tmp_path: Path, files: list[str]) -> None:
    first = _load(tmp_path, files)
    paint(tmp_path / "set" / files[2], (77, 0, 0))
    assert _load(tmp_path, files).inputs[:, 0, 2, 2].tolist() == [0, 10, 77, 30, 40]
    assert _load(tmp_path, files, Size(3, 3)).inputs.shape == (5, 3, 3, 3)
    assert _load(tmp_path, files[::-1]).file != first.file
    assert len(_entries(tmp_path)) == 4


def _decode_and_die(root: Path, files: list[str], folder: Path, started: Path) -> None:
    def die(path: Path, size: Size) -> bytes:
        if path.name == files[-1]:
            started.touch()
            time.sleep(60)
        return bytes(3 * size.width * size.height)

    pictures._load = die
    load_pictures(root, files, SIZE, folder)


def _decode_slowly(root: Path, files: list[str], folder: Path, report: Path) -> None:
    decode = pictures._decode

    def slow(content: bytes) -> object:
        time.sleep(0.1)
        report.with_name(f"{report.name}-{time.monotonic_ns()}").touch()
        return decode(content)

    pictures._decode = slow  # type: ignore[assignment]
    load_pictures(root, files, SIZE, folder)


def test_a_process_killed_half_way_leaves_nothing_behind(tmp_path: Path, files: list[str]) -> None:
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_decode_and_die, args=(tmp_path / "set", files, tmp_path / "cache", tmp_path / "started"))
    process.start()
    while not (tmp_path / "started").exists():
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert [".new-" in path.name for path in _entries(tmp_path)] == [True]
    assert _load(tmp_path, files).inputs[:, 0, 2, 2].tolist() == [0, 10, 20, 30, 40]
    assert len(_entries(tmp_path)) == 1  # what was left half-way is gone


def test_two_processes_decode_once(tmp_path: Path, files: list[str]) -> None:
    context = multiprocessing.get_context("fork")
    arguments = (tmp_path / "set", files, tmp_path / "cache", tmp_path / "decoded")
    processes = [context.Process(target=_decode_slowly, args=arguments) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len(list(tmp_path.glob("decoded-*"))) == len(files)
    assert len(_entries(tmp_path)) == 1


def test_without_locks_who_is_second_takes_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "fcntl", None)

    def make(folder: Path, by: str = "me") -> None:
        (folder / "by").write_text(by)
        if by == "me":
            cache.entry(tmp_path, "x", lambda other: make(other, "another"))

    assert (cache.entry(tmp_path, "x", make) / "by").read_text() == "another"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_failure_leaves_no_entry(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        cache.entry(tmp_path, "x", fail)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_what_a_user_can_mend_is_said_in_one_line(tmp_path: Path, files: list[str]) -> None:
    with pytest.raises(UserError, match=r"needs 1,000,000,000 MiB.* free: name another folder as data.cache"):
        cache.entry(tmp_path / "cache", "x", lambda folder: None, needs=10**9 * 2**20)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cache in .*file.* cannot be written"):
        cache.entry(tmp_path / "file", "x", lambda folder: None)
    found = _load(tmp_path, files).file
    found.path.write_bytes(b"short")
    with pytest.raises(UserError, match=r"pixels.bin is damaged or gone: remove the folder"):
        _load(tmp_path, files)


def test_the_cache_is_where_the_user_or_the_system_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.cache_folder("~/mine") == tmp_path / "mine"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache.cache_folder() == tmp_path / "x" / "fedomg"
    for relative in ("", "somewhere"):  # the specification says that such a value is to be ignored
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert cache.cache_folder() == tmp_path / ".cache" / "fedomg"


def test_where_the_cache_is_decides_nothing(tmp_path: Path) -> None:
    here, there = (make_config({"dataset": "pacs", "data": {"root": "r", "cache": name}}) for name in ("a", "b"))
    assert here.hash() == there.hash() != make_config({"dataset": "pacs", "data": {"root": "r", "size": 32}}).hash()


def test_workers_map_the_file_and_copy_nothing(tmp_path: Path) -> None:
    write_folders(tmp_path / "PACS", PACS, PACS_CLASSES, 3)
    config = make_config(
        {
            "method": "fedavg",
            "dataset": "pacs",
            "target": "sketch",
            "rounds": 1,
            "model": {"name": "tiny_resnet"},
            "data": {"root": str(tmp_path), "size": 32, "cache": str(tmp_path / "cache"), "validation": 0.34},
            "engine": {"name": "pool", "workers": 2},
        }
    )
    federation = build_federation(config)
    plain, tensors = pack(federation)
    assert nbytes(tensors) < federation.dataset.inputs.nbytes / 10
    assert torch.equal(unpack(plain, tensors).dataset.inputs, federation.dataset.inputs)
    trial = Experiment(config, federation)
    with closing(trial.engine):
        _, record = trial.advance(trial.initial_state())
        assert isinstance(trial.engine, PoolEngine)
        assert federation.dataset.file is not None
        for pid in trial.engine.pids:
            assert str(federation.dataset.file.path) in Path(f"/proc/{pid}/maps").read_text()
    assert record["views"]["target"]["n"] == 21
