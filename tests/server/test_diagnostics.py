"""What is read off the Gram matrix, against the vectors themselves."""

import itertools
import math
from typing import Any

import pytest
import torch
from tests.support import experiment, network, run_rounds, tiny

from fedomg import methods
from fedomg.omg import gram_matrix
from fedomg.server.diagnostics import agreement, pair_matrices, pair_means, pairs

NAMES = ("inner_product", "cosine", "divergence")


def test_of_two_orthogonal_and_one_opposed() -> None:
    updates = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]], dtype=torch.float64)
    gram = updates @ updates.T
    found = agreement(gram, updates @ torch.tensor([0.0, 1.0], dtype=torch.float64), 1.0)
    assert found.cosines.tolist() == [0.0, 1.0, 0.0]
    assert found.norms.tolist() == [1.0, 2.0, 1.0]
    assert pair_matrices(pairs(gram), [3, 5, 8]) == {
        "clients": [3, 5, 8],
        "inner_product": [[0.0, -1.0], [0.0]],
        "cosine": [[0.0, -1.0], [0.0]],
        "divergence": [[2.23607, 2.0], [2.23607]],
    }
    assert pair_means(pairs(gram)) == {
        "mean_pair_cosine": pytest.approx(-1 / 3),
        "mean_pair_inner_product": pytest.approx(-1 / 3),
        "mean_pair_divergence": pytest.approx((2 + 2 * math.sqrt(5)) / 3),
        "conflict_ratio": pytest.approx(1 / 3),
    }


@pytest.mark.parametrize("seed", range(3))
def test_pairs_against_the_vectors(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    updates = torch.randn(5, 7, generator=draw) * torch.tensor([1.0, 1e-3, 10.0, 2.0, 1.0]).unsqueeze(1)
    updates[4] = updates[0] * (1 + 1e-3)  # nearly the same
    found = pair_matrices(pairs(gram_matrix(updates)), list(range(5)))
    for u, v in itertools.combinations(range(5), 2):
        one, other = updates[u].double(), updates[v].double()
        expected = one @ other, torch.cosine_similarity(one, other, dim=0), (one - other).norm()
        for name, value in zip(NAMES, expected, strict=True):
            scale = {"inner_product": float(one.norm() * other.norm()), "cosine": 1.0, "divergence": float(one.norm() + other.norm())}[name]
            assert found[name][u][v - u - 1] == pytest.approx(
                float(value), rel=1e-5, abs=1e-3 * scale if (u, v) == (0, 4) else 1e-6 * scale
            ), name


def test_one_client_and_none_that_moved() -> None:
    assert set(pair_means(pairs(torch.ones(1, 1))).values()) == {None}
    still = agreement(torch.zeros(2, 2), torch.zeros(2), 0.0)
    assert all(math.isnan(cosine) for cosine in still.cosines.tolist())
    means = pair_means(pairs(torch.zeros(2, 2)))
    assert means == {"mean_pair_cosine": None, "mean_pair_inner_product": 0.0, "mean_pair_divergence": 0.0, "conflict_ratio": None}


@pytest.mark.parametrize("name", methods.names())
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_every_method_records_them_every_round(name: str, momentum: float) -> None:
    """The cosines against the step that the server has taken, and the updates that it was given."""
    trial = experiment(tiny(name, f"server.momentum={momentum}", "server.lr=0.7", "target=domain2", network(name), "rounds=2"))
    state = trial.initial_state()
    for _ in range(2):
        before = state.shared.clone()
        state, record = trial.advance(state)
        updates = trial.engine.matrix(len(record["clients"])).double()
        step = (state.shared - before).double()
        norms = updates.norm(dim=1)
        cosines = [client["cosine"] for client in record["clients"].values()]
        assert cosines == pytest.approx((updates @ step / (norms * step.norm())).tolist(), abs=1e-4)
        server: dict[str, Any] = record["server"]
        assert (server["objective"] is None) is (server["gap"] is None) is (not name.endswith("+omg"))
        if len(updates) > 1:
            shown = torch.tensor(list(itertools.chain(*server["pairs"]["divergence"])))
            assert shown.tolist() == pytest.approx(torch.pdist(updates).tolist(), rel=1e-3)
            assert server["mean_pair_divergence"] == pytest.approx(float(torch.pdist(updates).mean()), rel=1e-3)
        else:
            assert server["pairs"] is None
        gap, target = record["generalisation_gap"], record["views"]["target"]
        n = sum(domain["n"] for domain in record["validation"].values())
        right = sum(domain["accuracy"] * domain["n"] for domain in record["validation"].values())
        assert gap["accuracy"] == pytest.approx(right / n - target["accuracy"])
        assert target["loss"] - gap["loss"] == pytest.approx(sum(d["loss"] * d["n"] for d in record["validation"].values()) / n)
        assert set(record["validation"]) == {"domain1", "domain3", "domain4"}


def test_large_cohorts_keep_the_means_alone() -> None:
    for most, shown in ((4, True), (3, False), (0, False)):
        _, records = run_rounds(experiment(tiny("fedavg", f"evaluate.pairs_up_to={most}", "rounds=1")))
        assert (records[0]["server"]["pairs"] is not None) is shown
        assert records[0]["server"]["mean_pair_cosine"] is not None


def test_no_gap_without_target_or_validation() -> None:
    for override in ("data.validation=0.0", "evaluate.target=last", "evaluate.validation=never"):
        _, records = run_rounds(experiment(tiny("fedavg", "target=domain2", override, "rounds=2")))
        assert records[0]["generalisation_gap"] is None
        assert (records[1]["generalisation_gap"] is None) is (override != "evaluate.target=last")
