"""CelebA as WILDS and as its authors lay it out; the splitter by a mixture of domains; worst groups; a round of each method."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.copies import paint, write_celeba
from tests.support import experiment, run_rounds

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.data.catalogue import check_complete, load_dataset
from fedomg.data.dataset import TEST, TRAIN, VALIDATION, Dataset
from fedomg.data.options import DataOptions
from fedomg.data.partition import domain_mix
from fedomg.experiment.config import make_config
from fedomg.experiment.experiment import build_federation

PUBLISHED_ROW = ("fedavg", "fedprox", "scaffold", "fedadg", "fedsr", "fedavg+omg")
METHODS = [name for name in PUBLISHED_ROW if name.removesuffix(methods.OMG_SUFFIX) in methods.ENTRIES]


def load(root: Path, size: int = 12) -> Dataset:
    return load_dataset("celeba", DataOptions(root=str(root), size=size), seed=0)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("folder", [".", "celebA_v1.0", "celeba"])
def test_both_annotations_in_every_place(tmp_path: Path, folder: str, text: bool) -> None:
    home = tmp_path / folder
    home.mkdir(exist_ok=True)
    write_celeba(home, text=text)
    dataset = load(tmp_path)
    assert (dataset.class_names, dataset.domain_names) == (("not blond", "blond"), ("female", "male"))
    assert dataset.group_names == ("female, not blond", "female, blond", "male, not blond", "male, blond")
    assert dataset.inputs.shape == (80, 3, 15, 12)
    assert dataset.shape == (3, 12, 12)
    assert dataset.split is not None
    assert dataset.groups is not None
    assert dataset.split.bincount().tolist() == [48, 16, 16]
    assert [int((dataset.split == part).sum()) for part in (TRAIN, VALIDATION, TEST)] == [48, 16, 16]
    assert dataset.groups[dataset.split == TRAIN].bincount().tolist() == [12, 12, 21, 3]
    seen = dataset.inputs[:, :, 7, 6].float()
    assert torch.equal(seen[:, 0] > 100, dataset.domains == 1)
    assert torch.equal(seen[:, 1] > 100, dataset.labels == 1)


def test_the_original_folders(tmp_path: Path) -> None:
    write_celeba(tmp_path, text=True)
    for name, folder in (("list_attr_celeba.txt", "Anno"), ("list_eval_partition.txt", "Eval")):
        (tmp_path / folder).mkdir()
        (tmp_path / name).rename(tmp_path / folder / name)
    (tmp_path / "Img").mkdir()
    (tmp_path / "img_align_celeba").rename(tmp_path / "Img" / "img_align_celeba")
    assert len(load(tmp_path).labels) == 80


def _write(name: str, text: str) -> Callable[[Path], object]:
    return lambda root: (root / name).write_text(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "list_attr_celeba.csv").unlink(), r"lacks list_attr_celeba.csv \(or list_attr_celeba.txt\) in "),
        (lambda root: (root / "list_eval_partition.csv").unlink(), r"lacks list_eval_partition.csv"),
        (lambda root: (root / "img_align_celeba/000003.jpg").unlink(), r"lacks 1 of 80 pictures in .*, the first is 000003.jpg"),
        (_write("list_attr_celeba.csv", "image_id,Male\n000001.jpg,1\n"), "has no column Blond_Hair"),
        (_write("list_attr_celeba.csv", "image_id,Blond_Hair,Male\n1.jpg,1,0\n"), "line 2: '0' is no value of Blond_Hair or Male"),
        (_write("list_attr_celeba.csv", "image_id,Blond_Hair,Male\n1.jpg,1\n"), "line 2: 2 values where the header names 3"),
        (_write("list_attr_celeba.csv", "image_id,Blond_Hair,Male\n1.jpg,1,1\n"), "does not say to which part 1.jpg belongs"),
        (_write("list_attr_celeba.csv", "image_id,Blond_Hair,Male\n"), "names no picture"),
    ],
)
def test_what_is_missing_is_said_in_one_line(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    write_celeba(tmp_path)
    change(tmp_path)
    with pytest.raises(UserError, match=message) as refusal:
        load(tmp_path)
    assert "\n" not in str(refusal.value)


def test_a_broken_face_is_named_and_a_small_copy_is_incomplete(tmp_path: Path) -> None:
    write_celeba(tmp_path)
    (tmp_path / "img_align_celeba/000002.jpg").write_bytes(b"broken")
    dataset = load(tmp_path)
    assert dataset.skipped == ("000002.jpg",)
    assert len(dataset.labels) == len(dataset.inputs) == 79
    assert torch.equal(dataset.inputs[:, 0, 7, 6] > 100, dataset.domains == 1)
    paint(tmp_path / "img_align_celeba/000002.jpg", (200, 220, 220), (178, 218))
    with pytest.raises(UserError, match="holds 80 examples where a complete copy has 202,599"):
        check_complete("celeba", load(tmp_path))


def _counts(mix: float, sizes: tuple[int, ...] = (700, 301), clients: int = 10) -> np.ndarray[Any, np.dtype[np.int64]]:
    domains = np.repeat(np.arange(len(sizes)), sizes)
    parts = domain_mix(domains, np.zeros_like(domains), clients, mix, seed=0)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(sum(sizes)))  # all dealt, none twice
    return np.stack([np.bincount(domains[part], minlength=len(sizes)) for part in parts], axis=1)


def test_the_splitter_is_the_formula() -> None:
    """Domains of 700 and 301: 7 and 3 clients; a client of the first gets 700 (0.9 / 7 + 0.01) + 301 * 0.01."""
    counts = _counts(mix=0.1)
    own, other = 700 * (0.9 / 7 + 0.01), 301 * 0.01
    assert counts[0].tolist() == [97] * 7 + [7] * 3
    assert int(own + 1e-9) == 97
    assert set(counts[1, :7].tolist()) <= {int(other), int(other) + 1}
    assert counts.sum(axis=1).tolist() == [700, 301]


def test_with_all_mixed_every_client_has_the_same_and_with_nothing_mixed_one_domain() -> None:
    alike, apart = _counts(mix=1.0), _counts(mix=0.0)
    assert np.ptp(alike, axis=1).max() <= 1
    assert ((apart > 0).sum(axis=0) == 1).all()
    assert apart.sum(axis=1).tolist() == [700, 301]
    with pytest.raises(UserError, match=r"1 clients are too few for 2 domains; raise data\.clients"):
        _counts(mix=0.0, clients=1)


def _config(root: Path, method: str, **keys: Any) -> Any:
    table = {
        "method": method,
        "dataset": "celeba",
        "rounds": 1,
        "model": {"name": "tiny_resnet"},
        "data": {"root": str(root), "size": 12, "clients": 4, "mix": 0.1},
        "local": {"optimizer": "adam", "lr": 0.001, "batch_size": 8},
        "engine": "inline",
    }
    return make_config({**table, **keys})


def test_every_part_is_dealt_in_the_same_mixture(tmp_path: Path) -> None:
    write_celeba(tmp_path)
    federation = build_federation(_config(tmp_path, "fedavg"))
    domains, split = federation.dataset.domains, federation.dataset.split
    assert split is not None
    for part, role in (("train", TRAIN), ("validation", VALIDATION), ("test", TEST)):
        rows = [getattr(client, part).indices for client in federation.clients]
        assert torch.equal(torch.cat(rows).sort().values, (split == role).nonzero().flatten())
        share = [float((domains[held] == 0).float().mean()) for held in rows]
        assert min(share[:2]) > 0.6
        assert max(share[2:]) < 0.4


@pytest.mark.parametrize("method", METHODS)
def test_a_round_of_every_method_of_the_figure(tmp_path: Path, method: str) -> None:
    write_celeba(tmp_path)
    local = {"optimizer": "adam", "lr": 0.001, "batch_size": 8} if method != "scaffold" else {"lr": 0.001, "batch_size": 8}
    trial = experiment(_config(tmp_path, method, local=local))
    state, (record,) = run_rounds(trial)
    assert record["dropped"] == []
    assert bool(state.shared.isfinite().all())
    worst = record["views"]["worst_group"]
    assert set(worst["groups"]) == set(trial.federation.dataset.group_names)
    assert worst["accuracy"] == min(group["accuracy"] for group in worst["groups"].values())
    assert sum(group["n"] for group in worst["groups"].values()) == 16
    assert set(record["validation_groups"]) == set(trial.federation.dataset.group_names)
    assert sum(group["n"] for group in record["validation_groups"].values()) == 16
