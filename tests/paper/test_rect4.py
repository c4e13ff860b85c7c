"""The paths of Rect-4 against the engine of every other run, their measures by hand, and what is claimed of them."""

import math
from dataclasses import replace
from pathlib import Path as File

import pytest
import torch

from fedomg.data.deal import deal
from fedomg.data.federation import pooled
from fedomg.data.options import DataOptions
from fedomg.data.sources.rect4 import RECTANGLES
from fedomg.experiment.config import make_config
from fedomg.experiment.experiment import Experiment
from fedomg.paper.rect4_paths import FAMILY, LAYOUTS, STEPS, Construction, Path, Users, accuracy, centralised, matched, mean, updates, walk
from fedomg.paper.rect4_plots import SHOWN, draw
from fedomg.paper.rect4_study import (
    AS_LONG,
    CLAIMS,
    ERM,
    EVERYONE,
    FEDAVG,
    FEDOMG,
    HELD_OUT,
    RANDOM,
    SEEDS,
    SERVER_LRS,
    Row,
    alignment,
    distance_to_path,
    markdown,
    measures,
    pair_cosines,
    read_shares,
    shares,
    study,
    write,
)
from fedomg.report import drawing

DOCS = File(__file__).parents[2] / "docs"
WALKS = {"fedavg": lambda users: walk(users, mean, 0.7, 4), "fedomg": lambda users: walk(users, matched, 0.7, 4)}


@pytest.mark.parametrize("target", [None, "domain2"])
@pytest.mark.parametrize("method", ["fedavg", "fedomg", "erm"])
def test_paths_are_those_of_a_run_with_the_linear_model(method: str, target: str | None) -> None:
    """The difference of its two classes' parameters follows the gradient of the logistic loss at twice the rate."""
    dataset = Construction("drawn", 0.5).data(seed=3, points=40)
    config = make_config(
        {
            "method": method,
            "dataset": "rect4",
            "target": target,
            "rounds": 4,
            "server": {"lr": 1.0 if method == "erm" else 0.7},
            "model": {"name": "linear"},
            "local": {"lr": 0.05, "steps": STEPS, "batch_size": 40},
            "engine": {"name": "inline"},
        }
    )
    federation = deal(dataset, target, DataOptions(test=0, validation=0), seed=3)
    experiment = Experiment(config, pooled(federation) if method == "erm" else federation)
    state = experiment.initial_state()
    state = replace(state, shared=torch.zeros_like(state.shared))
    users = Users.of([dataset])
    users = users if target is None else users.without(1)
    path = centralised(users, 4) if method == "erm" else WALKS[method](users)
    for expected in path.models[0, 1:]:
        state, _ = experiment.advance(state)
        below, above, biases = state.shared[:2], state.shared[2:4], state.shared[4:]
        found = torch.cat([above - below, (biases[1] - biases[0])[None]])
        torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-4)
    experiment.engine.close()


def test_the_update_of_a_single_point_by_hand() -> None:
    """At (2, 0) with side +1 only w_x and b move, the former twice as much."""
    users = Users(torch.tensor([[[[2.0, 0.0, 1.0]]]], dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64))
    slope = 0.0
    for _ in range(STEPS):
        slope += 0.1 / (1 + math.exp(5 * slope))
    (update,) = updates(users, torch.zeros(1, 3, dtype=torch.float64))[0]
    assert update.tolist() == pytest.approx([2 * slope, 0, slope])


def test_steps_take_their_lengths_from_another_path() -> None:
    users = Users.of([SHOWN.data(0, points=20)])
    fedomg = walk(users, matched, rounds=5)
    as_long = walk(users, mean, rounds=5, lengths=fedomg.lengths)
    torch.testing.assert_close(as_long.lengths, fedomg.lengths)
    first = walk(users, mean, rounds=1).models[0, 1]
    assert float(torch.cosine_similarity(as_long.models[0, 1], first, dim=0)) == pytest.approx(1)


def test_data_sets_of_a_family_are_trained_each_by_itself() -> None:
    datasets = [construction.data(1, points=20) for construction in FAMILY[:3]]
    together = walk(Users.of(datasets), matched, rounds=3).models
    apart = torch.cat([walk(Users.of([dataset]), matched, rounds=3).models for dataset in datasets])
    torch.testing.assert_close(together, apart)


def test_layouts() -> None:
    assert tuple(LAYOUTS["alternating"](0)) == RECTANGLES
    assert [r.sign for r in LAYOUTS["aligned"](0)] == [1, 1, 1, 1]
    assert [r.centre for r in LAYOUTS["near"](0)] == [-3, -1, 1, 3]
    for seed in range(5):
        drawn = LAYOUTS["drawn"](seed)
        assert sum(r.sign for r in drawn) == 0
        assert all(abs(r.centre) <= 7 and 1 <= r.width <= 3 and 1 <= r.height <= 3 for r in drawn)
        assert list(drawn) == list(LAYOUTS["drawn"](seed)) != list(LAYOUTS["drawn"](seed + 1))
    quiet, loud = (Construction("near", noise).data(0).inputs[:, 1].std() for noise in (0.25, 1.0))
    assert quiet < loud


def test_pair_cosines_by_hand() -> None:
    """Of e1, e2, -2 e1: 0, -1 and 0."""
    rows = torch.tensor([[1.0, 0, 0], [0, 1, 0], [-2, 0, 0]])
    assert float(pair_cosines(rows)) == pytest.approx(-1 / 3)
    assert float(pair_cosines(rows[:1].repeat(4, 1))) == pytest.approx(1)
    assert pair_cosines(rows[:1]).isnan()


def test_the_distance_to_a_path_by_hand() -> None:
    """The path goes from the origin along x to 2 and then along y to 1."""
    corners = torch.tensor([[[0.0, 0, 0], [2, 0, 0], [2, 1, 0]]])
    points = torch.tensor([[[1.0, -3, 0], [-3, 4, 0], [2.5, 0.5, 0], [2, 2, 0], [1, 0, 7], [2, 0, 0]]])
    assert distance_to_path(points, corners)[0].tolist() == pytest.approx([3, 5, 0.5, 1, 7, 0])


def test_measures_by_hand() -> None:
    """The centralised path takes unit steps along y; the other, of half as long steps, ends with a bias of 3."""
    centre = Path(torch.tensor([[[0.0, 0, 0], [0, 1, 0], [0, 2, 0]]]), torch.zeros(1, 2, 1, 3))
    moves = torch.tensor([[[[1.0, 0, 0], [1, 0, 0]], [[1, 0, 0], [-1, 0, 0]]]])
    path = Path(torch.tensor([[[0.0, 0, 0], [0, 0.5, 0], [0, 1, 3]]]), moves)
    found = {name: float(value) for name, value in measures(path, centre, torch.tensor([[4.0, 1, 3]])).items()}
    assert found == pytest.approx(
        {
            "w_x": 0,
            "w_y": 1,
            "bias": 3,
            "apart": (0.5 + 10**0.5) / 2,
            "off_path": 1.5,
            "from_best": 4,
            "cosine": 0,
            "first_cosine": 1,
        }
    )


def test_alignment_is_that_of_directions_taken_at_the_centralised_models() -> None:
    users = Users.of([SHOWN.data(0, points=30)])
    centre = centralised(users, 2)
    expected = [torch.cosine_similarity(mean(updates(users, centre.models[:, r])), centre.updates[:, r, 0]) for r in range(2)]
    torch.testing.assert_close(alignment(users, centre, mean), torch.stack(expected, dim=1))
    torch.testing.assert_close(alignment(users.only(0), centralised(users.only(0), 2), mean), torch.ones(1, 2, dtype=torch.float64))


def test_accuracy_counts_points_on_their_side() -> None:
    users = Users(torch.tensor([[[[0.0, 1, 1], [0, -1, 1], [0, 2, 1], [0, -2, 1]]]]), torch.tensor([[[1.0, 1, -1, -1]]]))
    assert float(accuracy(users, torch.tensor([[0.0, 1, 0]]))) == 0.5


def _row(users: str, method: str, **values: float) -> Row:
    given = dict.fromkeys(
        ("w_x", "bias", "apart", "off_path", "from_best", "cosine", "first_cosine", "alignment", "first_alignment", "accuracy"), 0.0
    )
    return Row("c", 0, users, method, 1.0, **{**given, "w_y": 1.0, **values})


def test_shares_by_hand() -> None:
    """Bias of FedAvg 1 for all users, and 2, 0.5, -3, -1 with one held out; of FedOMG 1, 1, 1, 1; of steps as long 2."""
    rows = [_row(EVERYONE, FEDAVG, bias=1, cosine=-0.1, off_path=1, alignment=0.5), _row(EVERYONE, FEDOMG, alignment=0.4)]
    rows += [_row(EVERYONE, AS_LONG, apart=1), _row(RANDOM, FEDAVG, cosine=0.2, off_path=1)]
    for users, bias in zip(HELD_OUT, (2, 0.5, -3, -1), strict=True):
        rows += [_row(users, FEDAVG, bias=bias), _row(users, FEDOMG, bias=1, w_y=3), _row(users, AS_LONG, bias=2)]
    counted = {(s.claim, s.rival): (s.held, s.of) for s in shares(rows)}
    texts = {claim.text: counted[claim.text, claim.rival] for claim in CLAIMS if claim.rival == FEDAVG}
    as_long = {claim.text: counted[claim.text, claim.rival] for claim in CLAIMS if claim.rival == AS_LONG}
    assert texts["updates conflict under domain shift: mean cosine below 0"] == (1, 1)
    assert texts["updates agree when dealt at random: mean cosine above 0"] == (1, 1)
    assert texts["updates agree less under domain shift than dealt at random"] == (1, 1)
    assert texts["FedAvg strays further from the centralised path under domain shift"] == (0, 1)  # a tie
    assert texts["FedAvg's bias is larger with one user held out"] == (2, 4)
    assert texts["FedOMG's direction is nearer to the centralised one"] == (0, 1)
    assert texts["one user held out: FedOMG has less bias"] == (2, 4)
    assert texts["one user held out: FedOMG's boundary is nearer to y = 0"] == (4, 4)
    assert as_long["one user held out: FedOMG has less bias"] == (4, 4)
    assert as_long["FedOMG is nearer to the centralised model, round by round"] == (1, 1)
    assert as_long["one user held out: FedOMG ends nearer to the optimum"] == (0, 4)


@pytest.fixture(scope="module")
def small() -> list[Row]:
    return study(seeds=(0, 1), constructions=(SHOWN, Construction("drawn", 1.0)), server_lrs=(0.5, 1.0), rounds=10, points=50)


def test_a_small_family(small: list[Row], tmp_path: File) -> None:
    assert len(small) == 6 * 2 * 2 * (1 + 3 * 2)  # settings, constructions, seeds, and methods by rate
    assert {row.method for row in small} == {ERM, FEDAVG, FEDOMG, AS_LONG}
    assert all(row.apart == row.off_path == 0 for row in small if row.method == ERM)
    found = shares(small)
    once = sum(claim.once for claim in CLAIMS)
    assert len(found) == 2 * (2 * len(CLAIMS) - once)
    assert all(0 <= share.held <= share.of in (2, 8) for share in found)
    assert {share.server_lr for share in found} == {None, 0.5, 1.0}
    write(tmp_path / "claims.csv", found)
    assert read_shares(tmp_path / "claims.csv") == found
    write(tmp_path / "rows.csv", small)
    assert len((tmp_path / "rows.csv").read_text(encoding="utf-8").splitlines()) == 1 + len(small)


def test_everything_is_drawn(small: list[Row], tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "FORMATS", ("svg",))
    written = {path.name for path in draw(shares(small), tmp_path, rounds=6)}
    assert written == {f"rect4-{name}.svg" for name in ("figure1", "figure7", "figure8", "cosines", "claims")}
    assert {path.name for path in tmp_path.iterdir()} == written


@pytest.mark.parametrize("layout", LAYOUTS)
def test_updates_disagree_under_domain_shift_and_agree_when_dealt_at_random(layout: str) -> None:
    """What holds in every comparison of the family, on three seeds; and by the last rounds, the signs of the cosines."""
    construction = Construction(layout, SHOWN.noise)
    cosines, strayed = [], []
    for shift in (True, False):
        users = Users.of([construction.data(seed, shift) for seed in range(3)])
        path = walk(users, mean)
        cosines.append(pair_cosines(path.updates))
        strayed.append(distance_to_path(path.models[:, 1:], centralised(users).models).mean(dim=1))
    domains, random = cosines
    assert (domains < random).all()
    assert (domains[:, 50:] < 0).all()
    assert (random[:, :50] > 0.2).all()
    assert (strayed[0] > 2 * strayed[1]).all()


def test_with_kappa_below_one_both_methods_stop_at_the_same_models() -> None:
    """Where the mean update vanishes so does the invariant direction, and nowhere else: they differ only on the way."""
    users = Users.of([Construction("drawn", 1.0).data(seed, points=50) for seed in range(2)])
    still = walk(users, mean, rounds=1500).models[:, -1]
    rows = updates(users, still)
    assert float(mean(rows).norm()) < 1e-6 < float(rows.norm(dim=-1).min())
    assert float(matched(rows).norm()) < 1e-6
    away = updates(users, still + 0.1)
    shortest = (1 - 0.5) / (1 + 0.5**2) * mean(away).norm(dim=-1)
    assert (matched(away).norm(dim=-1) >= shortest).all()


def test_the_page_shows_the_counts_that_lie_beside_it() -> None:
    """And its family is the one that the command trains."""
    page, found = (DOCS / "rect4.md").read_text(encoding="utf-8"), read_shares(DOCS / "rect4-claims.csv")
    assert markdown(found) in page
    assert {share.construction for share in found} == set(map(str, FAMILY))
    assert {share.server_lr for share in found} == {None, *SERVER_LRS}
    for claim in CLAIMS:
        counts = {s.of for s in found if (s.claim, s.rival) == (claim.text, claim.rival)}
        assert counts == {len(SEEDS) * len(claim.users)}


def test_what_holds_everywhere_is_what_is_asserted() -> None:
    found = read_shares(DOCS / "rect4-claims.csv")
    always = {claim.text for claim in CLAIMS if all(s.held == s.of for s in found if (s.claim, s.rival) == (claim.text, claim.rival))}
    assert always == {
        "updates agree less under domain shift than dealt at random",
        "FedAvg strays further from the centralised path under domain shift",
    }
