"""The round loop: FedAvg against its closed form, equivalences, records, buffers, clients that send nonsense."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.support import experiment, federation_of, model_of, run_rounds, shared_after, tiny
from torch import Tensor, nn

from fedomg import methods
from fedomg.core.params import Group
from fedomg.core.records import ClientState, Reply
from fedomg.data.examples import Batch
from fedomg.experiment.experiment import Experiment, build_federation
from fedomg.experiment.files import to_json
from fedomg.local.loop import Stage, Visit
from fedomg.local.options import LocalOptions
from fedomg.local.trainer import BufferPolicy, Trainer
from fedomg.methods.method import Method
from fedomg.models.split import SplitModel


class _Quadratic(Trainer[LocalOptions]):
    """Client i minimises half the squared distance of one number to the mean of its inputs."""

    def module(self, model: SplitModel) -> nn.Module:
        return nn.Linear(1, 1, bias=False)

    def stages(self, visit: Visit) -> Sequence[Stage]:
        return (Stage(gradient=self._gradient),)

    def _gradient(self, visit: Visit, batches: list[Batch]) -> Tensor:
        centre = batches[0].inputs.mean()
        loss = (visit.model.module.weight - centre).square().sum() / 2  # type: ignore[operator]
        loss.backward()
        return loss.detach()


def _method(name: str, trainer: Callable[[LocalOptions], Trainer[Any]]) -> Method:
    options = tiny(name)
    return replace(methods.build(name, options.local, options.aggregator), trainer=trainer(options.local))


def _quadratics(name: str, centres: Sequence[float], sizes: Sequence[int], *overrides: str) -> Experiment:
    inputs = [torch.full((n, 1), centre) for centre, n in zip(centres, sizes, strict=True)]
    federation = federation_of(inputs, [torch.zeros(n, dtype=torch.long) for n in sizes])
    config = tiny(name, "local.batch_size=100", "evaluate.target=never", *overrides)
    return Experiment(config, federation, _method(name, _Quadratic))


def test_fedavg_on_quadratics_is_the_closed_form() -> None:
    """w_i = c_i + (1 - eta)^K (w - c_i), and the server takes their mean weighted by examples."""
    trial = _quadratics("fedavg", (1.0, 5.0), (10, 30), "local.steps=4", "local.lr=0.1")
    start = trial.initial_state()
    after, _ = trial.advance(start)
    shrink, w = 0.9**4, float(start.shared)
    expected = sum(p * (c + shrink * (w - c)) for p, c in ((0.25, 1.0), (0.75, 5.0)))
    assert float(after.shared) == pytest.approx(expected, rel=1e-6)


def test_one_full_batch_step_is_one_step_on_the_weighted_loss() -> None:
    trial = _quadratics("fedavg", (1.0, 5.0), (10, 30), "local.steps=1", "local.lr=0.1")
    start = trial.initial_state()
    after, _ = trial.advance(start)
    assert float(after.shared) == pytest.approx(float(start.shared) - 0.1 * (float(start.shared) - 4.0), rel=1e-6)


def test_kappa_zero_is_the_base_method_bit_for_bit() -> None:
    base = shared_after(tiny("fedavg"))
    assert torch.equal(base, shared_after(tiny("fedomg", "aggregator.kappa=0")))
    assert not torch.equal(base, shared_after(tiny("fedomg")))


def test_omg_with_one_client_rescales_it() -> None:
    """(1 + kappa) / (1 + kappa^2) is 1.2 at one half."""
    moved = {}
    for name in ("fedavg", "fedomg"):
        trial = _quadratics(name, (3.0,), (10,), "local.steps=1")
        start = trial.initial_state()
        moved[name] = float(trial.advance(start)[0].shared - start.shared)
    assert moved["fedomg"] == pytest.approx(1.2 * moved["fedavg"], rel=1e-5)


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not() -> None:
    assert torch.equal(shared_after(tiny("fedomg")), shared_after(tiny("fedomg")))
    assert not torch.equal(shared_after(tiny("fedomg")), shared_after(tiny("fedomg", "seed=1")))


def test_torch_settings_outside_do_not_change_the_bits() -> None:
    expected = shared_after(tiny("fedomg"))
    threads = torch.get_num_threads()
    torch.manual_seed(99)
    torch.set_num_threads(threads + 1)
    try:
        assert torch.equal(expected, shared_after(tiny("fedomg")))
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)


def test_the_server_learning_rate_and_momentum_scale_the_step() -> None:
    full, half = (experiment(tiny("fedavg", f"server.lr={lr}")) for lr in (1.0, 0.5))
    start = full.initial_state()
    torch.testing.assert_close(full.advance(start)[0].shared - start.shared, 2 * (half.advance(start)[0].shared - start.shared))
    heavy = experiment(tiny("fedavg", "server.momentum=0.9"))
    first, _ = heavy.advance(start)
    assert torch.equal(first.shared, full.advance(start)[0].shared)
    assert not torch.equal(heavy.advance(first)[0].shared, full.advance(first)[0].shared)


# ------------------------------------------------------------------------------------------------------------ records

ROUND_KEYS = {"generalisation_gap", "round", "cohort", "dropped", "views", "validation", "clients", "server", "bytes", "seconds"}
CLIENT_KEYS = {"name", "n", "steps", "loss", "norm", "cosine", "reference_weight", "omg_weight"}
SERVER_KEYS = {"objective", "gap", "converged", "step_norm", "reference_norm", "conflict_ratio", "pairs"}
SERVER_KEYS |= {"mean_pair_cosine", "mean_pair_inner_product", "mean_pair_divergence"}


@pytest.mark.parametrize("method", ["fedavg", "fedomg"])
def test_a_record_has_all_fields(method: str) -> None:
    trial = experiment(tiny(method, target="domain2"))
    first = trial.untrained(trial.initial_state())
    _, records = run_rounds(trial)
    assert first["round"] == 0
    assert first["server"] is None
    for record in (first, *records):
        assert record.keys() == ROUND_KEYS
        assert json.loads(to_json(record))
    last = records[-1]
    assert last["views"].keys() == {"global", "personalised", "adapted", "target", "worst_group"}
    assert last["validation"].keys() == {"domain1", "domain3", "domain4"}
    assert last["views"]["global"].keys() == {"accuracy", "loss", "n", "per_client", "clients", "domains"}
    assert last["views"]["target"]["domains"].keys() == {"domain2"}
    assert last["clients"].keys() == {"0", "1", "2"}
    assert all(client.keys() == CLIENT_KEYS for client in last["clients"].values())
    assert last["server"].keys() == SERVER_KEYS
    weights = [client["omg_weight"] for client in last["clients"].values()]
    assert sum(weights) == pytest.approx(1) if method == "fedomg" else weights == [None] * 3
    assert sum(client["reference_weight"] for client in last["clients"].values()) == pytest.approx(1)


def test_diagnostics_are_those_of_the_step_taken() -> None:
    trial = experiment(tiny("fedomg", "server.lr=0.3"))
    start = trial.initial_state()
    after, record = trial.advance(start)
    step = after.shared - start.shared
    assert record["server"]["step_norm"] == pytest.approx(float(step.norm()), rel=1e-4)
    rows = trial.engine.matrix(len(trial.federation.clients)).double()
    cosines = torch.nn.functional.cosine_similarity(rows, step.double().unsqueeze(0))
    assert [client["cosine"] for client in record["clients"].values()] == pytest.approx(cosines.tolist(), rel=1e-4)
    assert [client["norm"] for client in record["clients"].values()] == pytest.approx(rows.norm(dim=1).tolist(), rel=1e-5)


def test_omg_sends_not_one_byte_more() -> None:
    sent = [[record["bytes"] for record in run_rounds(experiment(tiny(method)))[1]] for method in ("fedavg", "fedomg")]
    assert sent[0] == sent[1]
    assert sent[0][0] == {"down": 4 * 6 * 4, "up": 4 * 6 * 4, "evaluation": sent[0][0]["evaluation"]}


def test_a_preset_records_the_reference_that_it_used() -> None:
    """code_fl compares with the plain mean: so do its record and, at kappa 0, its step."""
    trial = experiment(tiny("fedomg", "aggregator.preset=code_fl", "aggregator.kappa=0", "data.clients_per_domain=1"))
    _, record = trial.advance(trial.initial_state())
    assert [client["reference_weight"] for client in record["clients"].values()] == [0.25] * 4
    assert record["server"]["reference_norm"] == pytest.approx(record["server"]["step_norm"], rel=1e-5)


def test_worst_group_is_the_lowest_domain() -> None:
    trial = experiment(tiny("fedavg"))
    record = run_rounds(trial, 1)[1][0]
    groups = {name: entry["accuracy"] for name, entry in record["views"]["global"]["domains"].items()}
    assert record["views"]["worst_group"]["accuracy"] == min(groups.values())
    assert groups[record["views"]["worst_group"]["group"]] == min(groups.values())


def test_pooled_accuracy_counts_examples_not_clients() -> None:
    inputs = [torch.zeros(2, 1), torch.zeros(8, 1)]
    federation = federation_of(inputs, [torch.zeros(2, dtype=torch.long), torch.ones(8, dtype=torch.long)])
    trial = Experiment(tiny("fedavg", "evaluate.target=never"), federation)
    view = trial.untrained(trial.initial_state())["views"]["global"]
    by_client = [entry["accuracy"] for entry in view["clients"].values()]
    assert sorted(by_client) == [0.0, 1.0]
    assert view["accuracy"] == pytest.approx((2 * by_client[0] + 8 * by_client[1]) / 10)
    assert view["n"] == 10


def test_views_are_taken_when_they_are_due() -> None:
    intervals = {"global": 2, "worst_group": "never", "adapted": 1, "validation": "last", "personalised": "last"}
    config = tiny("fedavg", evaluate=intervals)
    _, records = run_rounds(experiment(config))
    assert [sorted(record["views"]) for record in records] == [["adapted"], ["adapted", "global"], ["adapted", "global", "personalised"]]
    assert [bool(record["validation"]) for record in records] == [False, False, True]


def test_global_views_of_a_round_are_one_pass_over_the_pooled_test_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Global, worst group and FedAvg's personalised view share it; clients' batches are not mixed, so that engines agree to the bit."""
    trial = experiment(tiny("fedavg", "evaluate.validation=never", "evaluate.adapted=never"))
    seen: list[int] = []

    def forward(inputs: Tensor) -> Tensor:
        seen.append(len(inputs))
        return torch.zeros(len(inputs), 2)

    monkeypatch.setattr(model_of(trial).module, "forward", forward)
    views = trial.untrained(trial.initial_state())["views"]
    assert views.keys() == {"global", "personalised", "worst_group"}
    assert sum(seen) == views["global"]["n"] == sum(len(client.test) for client in trial.federation.clients)


def test_the_adapted_view_trains_on_copies() -> None:
    _, records = run_rounds(experiment(tiny("fedavg", "evaluate.adapted=1")))
    assert all(record["views"]["adapted"]["loss"] != record["views"]["global"]["loss"] for record in records)
    assert torch.equal(shared_after(tiny("fedavg")), shared_after(tiny("fedavg", "evaluate.adapted=1")))


def _fingerprint(trial: Experiment, state: Any) -> str:
    tensors = {"shared": state.shared, **state.buffers, **state.optimizer}
    for client in range(len(trial.federation.clients)):
        tensors |= {f"{client}/{name}": tensor for name, tensor in trial.engine.states.of(client).items()}
    return hashlib.sha256(b"".join(name.encode() + tensor.numpy().tobytes() for name, tensor in sorted(tensors.items()))).hexdigest()


def test_evaluation_changes_no_state() -> None:
    config = tiny("fedavg", "local.momentum=0.9", "local.optimizer_state=persistent", "server.momentum=0.5", target="domain1")
    trial = experiment(config)
    state, _ = run_rounds(trial, 2)
    before = _fingerprint(trial, state)
    trial.engine.states.changed()
    assert trial._views(replace(state, round=3))[0].keys() == {"global", "personalised", "adapted", "target", "worst_group"}
    assert _fingerprint(trial, state) == before
    assert trial.engine.states.changed() == {}


def test_the_held_out_domain_never_enters_training_or_selection() -> None:
    """Poisoning the target leaves the model and the validation numbers as they are."""
    config = tiny("fedomg", target="domain2")
    clean = build_federation(config)
    poisoned = build_federation(config)
    assert poisoned.target is not None
    poisoned.dataset.inputs[poisoned.target.test.indices] = math.nan
    ends = [run_rounds(Experiment(config, federation)) for federation in (clean, poisoned)]
    assert torch.equal(ends[0][0].shared, ends[1][0].shared)
    assert [record["validation"] for record in ends[0][1]] == [record["validation"] for record in ends[1][1]]
    assert ends[0][1][-1]["views"]["target"] != ends[1][1][-1]["views"]["target"]


# ------------------------------------------------------------------------------------------------------------ buffers


class _Normed(Trainer[LocalOptions]):
    def module(self, model: SplitModel) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2))


def _normed(policy: str) -> Experiment:
    inputs = [torch.full((8, 1), 1.0) + torch.arange(8.0).unsqueeze(1), torch.full((24, 1), 5.0)]
    federation = federation_of(inputs, [torch.arange(8) % 2, torch.arange(24) % 2])
    config = tiny("fedavg", f"server.buffers={policy}", "local.epochs=1", "local.batch_size=8")
    return Experiment(config, federation, _method("fedavg", _Normed))


def test_averaged_buffers_are_weighted_and_counters_take_the_largest() -> None:
    state, _ = run_rounds(_normed("average"), 1)
    first, second = 0.1 * 4.5, 5.0 * (1 - 0.9**3)
    assert float(state.buffers["0.running_mean"]) == pytest.approx(0.25 * first + 0.75 * second, rel=1e-5)
    assert int(state.buffers["0.num_batches_tracked"]) == 3


def test_kept_buffers_never_change() -> None:
    state, _ = run_rounds(_normed("keep"), 2)
    assert float(state.buffers["0.running_mean"]) == 0
    assert int(state.buffers["0.num_batches_tracked"]) == 0


def test_local_buffers_stay_with_their_client() -> None:
    trial = _normed("local")
    state, records = run_rounds(trial, 2)
    assert state.buffers == {}
    own = trial.engine.states.changed()
    means = [float(own[client]["buffers/0.running_mean"]) for client in (0, 1)]
    assert means == pytest.approx([4.5 * (1 - 0.9**2), 5.0 * (1 - 0.9**6)], rel=1e-5)
    assert [int(own[client]["buffers/0.num_batches_tracked"]) for client in (0, 1)] == [2, 6]
    weights_alone = 4 * len(state.shared) * 2
    assert records[0]["bytes"]["up"] == weights_alone


# ------------------------------------------------------------------------------------------------------- broken clients


class _Breaks(Trainer[LocalOptions]):
    """The clients named return what is not finite."""

    def __init__(self, options: LocalOptions, clients: Sequence[int], where: str = "update") -> None:
        super().__init__(options)
        self._clients, self._where = clients, where

    def run(self, phase: str, visit: Visit, buffers: BufferPolicy, row: Tensor | None) -> tuple[Reply, ClientState]:
        reply, state = super().run(phase, visit, buffers, row)
        if visit.client.id in self._clients:
            if self._where == "update":
                assert row is not None
                row[0] = math.nan
            else:
                reply = replace(reply, extras={"statistic": torch.tensor([math.inf])})
        return reply, state


@pytest.mark.parametrize("where", ["update", "extras"])
@pytest.mark.parametrize("name", ["fedavg", "fedomg"])
def test_a_client_that_sends_nonsense_is_dropped_by_name(name: str, where: str) -> None:
    config = tiny(name)
    federation = build_federation(config)
    broken = Experiment(config, federation, _method(name, partial(_Breaks, clients=(2,), where=where)))
    state, record = broken.advance(broken.initial_state())
    assert record["dropped"] == [2]
    assert record["clients"].keys() == {"0", "1", "3"}
    assert state.shared.isfinite().all()
    assert sum(client["reference_weight"] for client in record["clients"].values()) == pytest.approx(1)


def test_a_round_without_a_usable_update_keeps_the_model() -> None:
    config = tiny("fedomg")
    broken = Experiment(config, build_federation(config), _method("fedomg", partial(_Breaks, clients=(0, 1, 2, 3))))
    start = broken.initial_state()
    state, record = broken.advance(start)
    assert torch.equal(state.shared, start.shared)
    assert state.round == 1
    assert (record["dropped"], record["clients"], record["server"]) == ([0, 1, 2, 3], {}, None)


class _Personal(Trainer[LocalOptions]):
    personalises = True

    def group_of(self, name: str) -> Group:
        return Group.PERSONAL if name.startswith("head.bias") else Group.SHARED


def test_personal_parameters_stay_out_of_the_matrix_and_with_their_client() -> None:
    config = tiny("fedomg", "evaluate.personalised=1")
    trial = Experiment(config, build_federation(config), _method("fedomg", _Personal))
    assert trial.parameters == 4
    state, records = run_rounds(trial, 2)
    assert state.shared.shape == (4,)
    own = trial.engine.states.changed()
    assert own.keys() == {0, 1, 2, 3}
    assert len({tuple(state["personal"].tolist()) for state in own.values()}) == 4
    assert records[-1]["views"]["personalised"]["loss"] != records[-1]["views"]["global"]["loss"]
