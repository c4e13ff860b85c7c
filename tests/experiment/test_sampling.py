import pytest
from tests.support import experiment, run_rounds, tiny

from fedomg.experiment.sampling import sample_cohort


@pytest.mark.parametrize(("clients", "participation", "size"), [(100, 0.29, 29), (100, 0.2, 20), (5, 0.5, 3), (100, 0.001, 1), (7, 1.0, 7)])
def test_the_share_is_rounded_not_cut(clients: int, participation: float, size: int) -> None:
    cohort = sample_cohort(clients, participation, seed=0, round=1)
    assert len(cohort) == len(set(cohort)) == size
    assert cohort == sorted(cohort)
    assert set(cohort) <= set(range(clients))


def test_every_round_draws_anew_and_every_seed_differently() -> None:
    draws = {tuple(sample_cohort(100, 0.2, seed, round)) for seed in range(3) for round in range(1, 6)}
    assert len(draws) == 15


def test_all_clients_are_drawn_in_the_end() -> None:
    assert {client for round in range(60) for client in sample_cohort(20, 0.2, 0, round)} == set(range(20))


def test_all_methods_see_the_same_cohorts() -> None:
    seen = []
    for method, key in (("fedavg", "local.lr=0.1"), ("fedomg", "local.epochs=3")):
        config = tiny(method, key, "server.participation=0.5", "data.clients_per_domain=3")
        seen.append([record["cohort"] for record in run_rounds(experiment(config))[1]])
    assert seen[0] == seen[1]
    assert len({tuple(cohort) for cohort in seen[0]}) > 1
