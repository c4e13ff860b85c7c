"""The label-shift methods against their equations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.quadratics import Quadratics, path_of
from tests.support import experiment, model_of, network, run_rounds, shared_after, tiny, visit_of
from torch import Tensor

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.params import Group
from fedomg.core.records import Reply
from fedomg.data.examples import Batch
from fedomg.experiment.config import Config
from fedomg.experiment.experiment import Experiment
from fedomg.local.features import ClassFeatures
from fedomg.local.trainer import load
from fedomg.methods.fedas import FedAsOptions, FisherTrace, _align
from fedomg.methods.fedpac import head_weights, statistics, without_the_smallest
from fedomg.methods.fedrod import TwoHeads
from fedomg.models.linear import linear
from fedomg.models.split import SplitModel

VIEWS = ("global", "personalised", "adapted", "worst_group", "target", "validation")
FEDERATED = [entry.name for entry in methods.ENTRIES.values() if entry.kind == "federated"]
COMPOSING = [entry.name for entry in methods.ENTRIES.values() if entry.composes]


# ------------------------------------------------------------------------------------------------------- equivalences


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("fedprox", ("local.mu=0",)),
        ("peravg", ("local.alpha=0",)),
        ("peravg", ("local.alpha=0", "local.momentum=0.9")),
        ("fedsam", ("local.rho=0", "local.momentum=0.9", "local.clip=0.1")),
        ("mofedsam", ("local.rho=0", "local.beta=1")),
    ],
)
def test_without_its_idea_a_method_is_fedavg_bit_for_bit(name: str, overrides: tuple[str, ...]) -> None:
    common = [override for override in overrides if override.startswith(("local.momentum", "local.clip"))]
    assert torch.equal(shared_after(tiny("fedavg", *common)), shared_after(tiny(name, *overrides)))


@pytest.mark.parametrize("name", COMPOSING)
def test_kappa_zero_is_the_base_method_bit_for_bit(name: str) -> None:
    config = tiny(f"{name}+omg", "aggregator.kappa=0", network(name))
    assert torch.equal(shared_after(tiny(name, network(name))), shared_after(config))


@pytest.mark.parametrize("name", FEDERATED)
def test_all_methods_see_the_same_cohorts_and_start(name: str) -> None:
    keys = ("server.participation=0.5", "data.clients_per_domain=2", network(name))
    base, other = experiment(tiny("fedavg", *keys)), experiment(tiny(name, *keys))
    start = dict(model_of(base).module.named_parameters())
    for parameter, value in model_of(other).module.named_parameters():
        assert torch.equal(start.get(parameter, value), value)
    assert [r["cohort"] for r in run_rounds(base)[1]] == [r["cohort"] for r in run_rounds(other)[1]]


@pytest.mark.parametrize("name", methods.names())
def test_every_method_learns_and_evaluation_changes_nothing(name: str) -> None:
    config = tiny(name, "evaluate.adapted=1", "evaluate.personalised=1", "rounds=5", network(name))
    trial = experiment(config)
    state, records = run_rounds(trial)
    last = records[-1]["views"]
    assert last.keys() >= {"global", "personalised", "adapted"}
    assert last["adapted"]["accuracy"] > 0.7
    assert records[-1]["dropped"] == []
    quiet = tiny(name, "rounds=5", network(name), evaluate=dict.fromkeys(VIEWS, "never"))
    unseen = experiment(quiet)
    expected, _ = run_rounds(unseen)
    assert torch.equal(state.shared, expected.shared)
    _assert_equal(state.coordinator, expected.coordinator)
    mine, theirs = trial.engine.states.changed(), unseen.engine.states.changed()
    assert mine.keys() == theirs.keys()
    for client in mine:
        _assert_equal(mine[client], theirs[client])


def _assert_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)


# ------------------------------------------------------------------------------------------------------------- FedProx


def test_fedprox_goes_to_its_fixed_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """(a c + mu theta) / (a + mu)."""
    trial = Quadratics(monkeypatch, 2.0).experiment("fedprox", (5.0,), "local.mu=3", "local.steps=200")
    before, after = path_of(trial)
    assert after == pytest.approx((2 * 5 + 3 * before) / 5, rel=1e-5)


# ------------------------------------------------------------------------------------------------------------ SCAFFOLD


def test_scaffold_with_one_client_is_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    quadratics = Quadratics(monkeypatch)
    scaffold = path_of(quadratics.experiment("scaffold", (5.0,)), 4)
    assert scaffold == pytest.approx(path_of(quadratics.experiment("fedavg", (5.0,)), 4), rel=1e-5)


def test_one_step_leaves_the_gradient_at_the_start_as_control(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Quadratics(monkeypatch).experiment("scaffold", (1.0, 5.0), "local.steps=1")
    state, _ = trial.advance(start := trial.initial_state())
    own = trial.engine.states.changed()
    theta = float(start.shared)
    assert [float(own[c]["control"]) for c in (0, 1)] == pytest.approx([theta - 1, theta - 5], rel=1e-5)
    assert float(state.coordinator["control"]) == pytest.approx(theta - 3, rel=1e-5)


def test_true_controls_make_all_clients_follow_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """On quadratics of equal curvature, with c_u the gradient at theta and c their mean, both walk to the mean of the centres."""
    trial = Quadratics(monkeypatch).experiment("scaffold", (1.0, 5.0), "local.steps=1")
    state, _ = trial.advance(trial.initial_state())
    theta = float(state.shared)
    for client, centre in enumerate((1, 5)):
        trial.engine.states.put(client, {"control": torch.tensor([theta - centre])})
    state = replace(state, coordinator={**state.coordinator, "control": torch.tensor([theta - 3])})
    trial.advance(state)
    assert trial.engine.matrix(2).flatten().tolist() == pytest.approx([0.1 * (3 - theta)] * 2, rel=1e-4)


def test_the_server_control_is_the_mean_of_the_clients() -> None:
    trial = experiment(tiny("scaffold", "server.participation=0.5", "data.clients_per_domain=2", "rounds=4"))
    state, _ = run_rounds(trial)
    own = trial.engine.states.changed()
    mean = torch.stack([state["control"] for state in own.values()]).sum(dim=0) / 8
    torch.testing.assert_close(state.coordinator["control"], mean, rtol=1e-4, atol=1e-6)


def test_scaffold_follows_a_decaying_rate() -> None:
    """The control after a round is the mean gradient along it, whatever the schedule."""
    trial = experiment(tiny("scaffold", "local.schedule=cosine", "rounds=4"))
    before = trial.initial_state()
    trial.advance(before)
    controls = trial.engine.states.changed()
    rates = [0.1 * trial.config.local.factor(step / 4 / 4) for step in range(4)]
    for client, row in enumerate(trial.engine.matrix(4)):
        torch.testing.assert_close(controls[client]["control"], -row / sum(rates), rtol=1e-4, atol=1e-6)


def test_scaffold_refuses_what_its_formula_does_not_hold_for() -> None:
    for override in ("local.optimizer=adam", "local.momentum=0.9", "local.clip=1.0"):
        with pytest.raises(UserError, match="plain sgd"):
            tiny("scaffold", override)


# -------------------------------------------------------------------------------------------------------------- PerAvg


@pytest.mark.parametrize(("variant", "power"), [("fo", 1), ("hf", 2)])
def test_a_meta_step_on_a_quadratic(monkeypatch: pytest.MonkeyPatch, variant: str, power: int) -> None:
    """w - beta a (1 - alpha a)^p (w - c), with p = 1 for first order and 2 with the curvature."""
    quadratics = Quadratics(monkeypatch, curvature=2.0)
    trial = quadratics.experiment("peravg", (5.0,), "local.alpha=0.2", f"local.variant={variant}", "local.steps=1", "local.lr=0.1")
    before, after = path_of(trial)
    assert after == pytest.approx(before - 0.1 * 2 * (1 - 0.2 * 2) ** power * (before - 5), rel=2e-3 if variant == "hf" else 1e-5)


def test_the_personal_model_is_one_step_away() -> None:
    trial = experiment(tiny("peravg", "local.alpha=0.3", "local.batch_size=1000"))
    state, client = trial.initial_state(), trial.federation.clients[0]
    visit = visit_of(trial, 0)
    load(visit)
    trial._trainer.personalise(visit)
    model = linear((2,), 2)
    model.load_state_dict(dict(zip(model.state_dict(), (p.detach().clone() for p in _initial(trial)), strict=True)))
    inputs, labels = client.train.batch(torch.arange(len(client.train)))
    F.cross_entropy(model(inputs), labels).backward()
    expected = torch.cat([(p - 0.3 * p.grad).detach().flatten() for p in model.parameters()])  # type: ignore[operator]
    torch.testing.assert_close(visit.model.shared, expected, rtol=1e-4, atol=1e-6)
    assert not torch.equal(visit.model.shared, state.shared)


def _initial(trial: Experiment) -> list[Tensor]:
    flat = model_of(trial).initial_values[Group.SHARED]
    return [flat[:4].view(2, 2), flat[4:]]


# -------------------------------------------------------------------------------------------------------------- FedRod


def _gradients(trial: Experiment, labels: Tensor, log_counts: Tensor) -> tuple[float, Tensor, Tensor]:
    visit = visit_of(trial, 0)
    load(visit)
    visit.model.train_only((Group.SHARED, Group.PERSONAL))
    for gradient in visit.model.gradients.values():
        gradient.zero_()
    inputs = trial.federation.clients[0].train.batch(torch.arange(len(labels))).inputs
    loss = trial._trainer._loss(visit, [Batch(inputs, labels)], log_counts)  # type: ignore[attr-defined]
    loss.backward()
    return float(loss.detach()), visit.model.gradients[Group.SHARED].clone(), visit.model.gradients[Group.PERSONAL].clone()


@pytest.mark.parametrize(("label", "loss"), [(0, 1.386294), (1, 0.287682)])
def test_balanced_softmax_with_counts_one_and_three(label: int, loss: float) -> None:
    trial = experiment(tiny("fedrod"))
    model_of(trial).initial_values[Group.SHARED].zero_()
    found, *_ = _gradients(trial, torch.tensor([label]), torch.tensor([1.0, 3.0]).log())
    assert found == pytest.approx(loss, abs=1e-6)


def test_a_class_that_the_client_lacks_is_masked() -> None:
    found, shared, personal = _gradients(experiment(tiny("fedrod")), torch.tensor([0, 0]), torch.tensor([5.0, 0.0]).log())
    assert found == pytest.approx(0, abs=1e-6)
    assert shared.isfinite().all()
    assert personal.isfinite().all()


def test_equal_counts_are_cross_entropy() -> None:
    trial = experiment(tiny("fedrod"))
    labels = torch.tensor([0, 1, 1])
    balanced = _gradients(trial, labels, torch.tensor([7.0, 7.0]).log())[1]
    plain = _gradients(trial, labels, torch.zeros(2))[1]
    torch.testing.assert_close(balanced, plain)


def test_the_personal_head_leaves_the_shared_part_alone() -> None:
    trial = experiment(tiny("fedrod"))
    labels = torch.tensor([0, 1, 1])
    shared = _gradients(trial, labels, torch.zeros(2))[1]
    model_of(trial).initial_values[Group.PERSONAL].add_(5)
    assert torch.equal(shared, _gradients(trial, labels, torch.zeros(2))[1])


def test_a_zero_personal_head_answers_as_the_global_model() -> None:
    trial = experiment(tiny("fedrod"))
    visit = visit_of(trial, 0, {"personal": torch.zeros(6)})
    load(visit)
    inputs = torch.randn(5, 2)
    assert torch.equal(trial._trainer.predictor(visit)(inputs), trial._trainer.global_predictor(visit)(inputs))


def test_omg_takes_body_and_shared_head_and_never_the_personal_one() -> None:
    trial = experiment(tiny("fedrod+omg", "model.name=mlp"))
    module = model_of(trial).module
    assert isinstance(module, TwoHeads)
    personal = sum(p.numel() for p in module.personal.parameters())
    assert trial.parameters == sum(p.numel() for p in module.parameters()) - personal
    run_rounds(trial, 1)
    heads = [state["personal"] for state in trial.engine.states.changed().values()]
    assert len(heads) == 4
    assert not torch.equal(heads[0], heads[1])


# ------------------------------------------------------------------------------------------------------------- FedBABU


def test_the_head_never_moves_and_is_not_in_the_matrix() -> None:
    trial = experiment(tiny("fedbabu+omg", "model.name=mlp", "local.weight_decay=0.1"))
    head = model_of(trial).values[Group.FROZEN].clone()
    body = sum(p.numel() for name, p in model_of(trial).module.named_parameters() if name.startswith("body."))
    assert trial.parameters == body
    run_rounds(trial)
    visit = visit_of(trial, 0)
    load(visit)
    assert torch.equal(visit.model.values[Group.FROZEN], head)


def test_fine_tuning_moves_both_parts_of_a_copy() -> None:
    trial = experiment(tiny("fedbabu", "model.name=mlp", "local.finetune_epochs=2"))
    visit = visit_of(trial, 0)
    load(visit)
    body, head = visit.model.shared.clone(), visit.model.values[Group.FROZEN].clone()
    trial._trainer.personalise(visit)
    assert not torch.equal(visit.model.shared, body)
    assert not torch.equal(visit.model.values[Group.FROZEN], head)
    load(visit)
    assert torch.equal(visit.model.values[Group.FROZEN], head)


def test_without_fine_tuning_the_personal_view_is_the_global_one() -> None:
    _, records = run_rounds(experiment(tiny("fedbabu", "model.name=mlp", "local.finetune_epochs=0")))
    assert records[-1]["views"]["personalised"] == records[-1]["views"]["global"]


def test_the_costly_view_is_taken_after_the_last_round() -> None:
    assert tiny("fedbabu").evaluate.personalised == "last"
    assert tiny("fedrod").evaluate.personalised == 1


# -------------------------------------------------------------------------------------------------------------- FedPAC


def _pac_reply(client: int, mean: Sequence[float], variance: float) -> Reply:
    return Reply(client, extras={"statistics": torch.tensor(mean), "variance": torch.tensor(variance)})


def test_head_weights_of_two_clients() -> None:
    """a_1 = (v2 + D) / (v1 + v2 + D); with v1 = v2 = 1 and D = 2 that is 3/4."""
    weights = head_weights([_pac_reply(0, [0.0, 0.0], 1.0), _pac_reply(1, [1.0, 1.0], 1.0)])
    torch.testing.assert_close(weights, torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64))


def test_equal_statistics_weigh_inversely_to_the_variance() -> None:
    replies = [_pac_reply(client, [1.0], variance) for client, variance in enumerate((1.0, 2.0, 4.0))]
    expected = torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64) / 7
    torch.testing.assert_close(head_weights(replies), expected.expand(3, 3))


def test_small_weights_are_cut_and_the_rest_renormalised() -> None:
    weights = head_weights([_pac_reply(0, [0.0], 1.0), _pac_reply(1, [0.0], 2e3)])
    assert weights.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_a_thousand_clients_do_not_cut_each_other_away() -> None:
    even = torch.full((1001,), 1 / 1001, dtype=torch.float64)
    torch.testing.assert_close(without_the_smallest(even), even)


def test_small_weights_are_cut() -> None:
    torch.testing.assert_close(without_the_smallest(torch.tensor([0.6, 0.3995, 0.0005])), torch.tensor([0.6, 0.3995, 0.0]) / 0.9995)


def test_permuting_the_clients_permutes_the_weights() -> None:
    draw = torch.Generator().manual_seed(0)
    replies = [_pac_reply(c, torch.rand(3, generator=draw).tolist(), 0.5 + c) for c in range(4)]
    order = [2, 0, 3, 1]
    permuted = head_weights([replies[c] for c in order])
    torch.testing.assert_close(permuted, head_weights(replies)[order][:, order], rtol=1e-5, atol=1e-7)


def test_statistics_of_a_tiny_client() -> None:
    """Two of class 0 with features 1 and 3, one of class 1 with feature 2."""
    found = statistics(ClassFeatures(torch.tensor([2.0, 1.0]), torch.tensor([[2.0], [2.0]]), torch.tensor([5.0, 4.0])))
    assert found["statistics"].flatten().tolist() == pytest.approx([4 / 3, 2 / 3])
    assert float(found["variance"]) == pytest.approx((2 / 3 * 5 + 1 / 3 * 4 - 16 / 9 - 4 / 9) / 3)


def test_each_client_gets_its_own_mix_also_for_evaluation() -> None:
    trial = experiment(tiny("fedpac", "model.name=mlp"))
    state, _ = run_rounds(trial, 1)
    extras = [trial._method.coordinator.extras("view:personalised", client, state.coordinator) for client in range(4)]
    assert all(sent.keys() == {"personal"} for sent in extras)
    assert len({tuple(sent["personal"].tolist()) for sent in extras}) == 4
    fit = trial._method.coordinator.extras("fit", 0, state.coordinator)
    assert fit.keys() == {"personal", "prototypes", "counts"}


def test_a_received_head_replaces_the_own_one() -> None:
    trial = experiment(tiny("fedpac", "model.name=mlp"))
    size = len(model_of(trial).values[Group.PERSONAL])
    visit = visit_of(trial, 0, {"personal": torch.ones(size)}, {"personal": torch.full((size,), 2.0)})
    load(visit)
    assert visit.model.values[Group.PERSONAL].tolist() == [2.0] * size


def test_prototypes_are_weighted_by_counts_and_missing_classes_do_not_pull() -> None:
    coordinator = methods.build("fedpac", tiny("fedpac").local, tiny("fedpac").aggregator).coordinator

    def reply(client: int, prototype: float, count: float) -> Reply:
        plain = _pac_reply(client, [0.0], 1.0)
        found = {"prototypes": torch.tensor([[prototype], [0.0]]), "counts": torch.tensor([count, 0.0])}
        return replace(plain, extras={**plain.extras, **found, "personal": torch.zeros(1)})

    replies = [reply(0, 1.0, 1.0), reply(1, 5.0, 3.0)]
    state = coordinator.collect("fit", replies, None, {})
    assert state["prototypes"].tolist() == [[4.0], [0.0]]
    assert state["counts"].tolist() == [4.0, 0.0]


def test_the_pull_is_the_mean_over_batch_and_features() -> None:
    trial = experiment(tiny("fedpac", "model.name=mlp"))
    extras = {"prototypes": torch.tensor([[1.0, 1.0], [9.0, 9.0]]), "counts": torch.tensor([3.0, 0.0])}
    visit = visit_of(trial, 0, extras=extras)
    features = torch.tensor([[2.0, 4.0], [0.0, 0.0]])
    found = trial._trainer._distance(visit, features, torch.tensor([0, 1]))  # type: ignore[attr-defined]
    assert float(found) == pytest.approx((1 + 9) / 2 / 2)


def test_head_first_then_body() -> None:
    stages = experiment(tiny("fedpac", "model.name=mlp", "local.epochs=3"))._trainer.stages(None)  # type: ignore[arg-type]
    assert [(stage.groups, stage.epochs) for stage in stages] == [((Group.PERSONAL,), 1), ((Group.SHARED,), None)]


# --------------------------------------------------------------------------------------------------------------- FedAS


@pytest.mark.parametrize(("name", "asked"), [("fedpac", 4), ("fedas", 4), ("fedrod", 0), ("fedavg", 0)])
def test_without_a_shared_head_validation_asks_the_personal_model(name: str, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = experiment(tiny(name, "model.name=mlp", evaluate={**dict.fromkeys(VIEWS, "never"), "validation": 1}))
    turned: list[int] = []
    monkeypatch.setattr(trial._trainer, "personalise", lambda visit: turned.append(visit.client.id))
    trial.untrained(trial.initial_state())
    assert len(turned) == asked


def test_fisher_traces_are_weights_and_examples_the_fallback() -> None:
    def replies(*traces: float) -> list[Reply]:
        extras = [{"fisher": torch.tensor(trace, dtype=torch.float64)} for trace in traces]
        return [Reply(c, samples=1 + c, extras=extra) for c, extra in enumerate(extras)]

    assert FisherTrace(FedAsOptions()).weights(replies(1.0, 3.0), {})[0].tolist() == [0.25, 0.75]
    assert FisherTrace(FedAsOptions()).weights(replies(0.0, 0.0), {})[0].tolist() == pytest.approx([1 / 3, 2 / 3])


def test_the_trace_is_the_sum_of_squared_gradient_norms_over_batches() -> None:
    trial = experiment(tiny("fedas", "model.name=mlp", "local.align_epochs=0"))
    visit = visit_of(trial, 0)
    load(visit)
    found = trial._trainer.report(visit, None)["fisher"]  # type: ignore[arg-type]
    model, expected = visit.model.module, 0.0
    for inputs, labels in visit.client.train.in_order(trial.config.local.batch_size):
        gradients = torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(model.parameters()))
        expected += sum(float(gradient.square().sum()) for gradient in gradients)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_alignment_pulls_features_to_the_old_means() -> None:
    """Summed over classes, averaged within each."""
    trial = experiment(tiny("fedas", "model.name=mlp"))
    visit = visit_of(trial, 0)
    load(visit)
    visit.model.train_only((Group.SHARED,))
    module = visit.model.module
    assert isinstance(module, SplitModel)
    inputs, labels = torch.randn(5, 2), torch.tensor([0, 0, 0, 1, 1])
    features = module.body(inputs).detach()
    old = torch.randn(2, features.shape[1])
    expected = sum(F.mse_loss(features[labels == k], old[k].expand_as(features[labels == k])) for k in (0, 1))
    assert float(_align(visit, [Batch(inputs, labels)], old).detach()) == pytest.approx(float(expected), rel=1e-5)


def test_without_alignment_body_and_head_train_together() -> None:
    """With rate 0 the alignment leaves the received body; equal to FedPer under equal traces."""
    still = run_rounds(experiment(tiny("fedas", "model.name=mlp", "local.align_lr=0.0")), 1)[0].shared
    skipped = run_rounds(experiment(tiny("fedas", "model.name=mlp", "local.align_epochs=0")), 1)[0].shared
    assert torch.equal(still, skipped)


@pytest.mark.parametrize("training", ["optimizer=adam", "momentum=0.9", "weight_decay=0.5", "clip=1e-3", "schedule=cosine"])
def test_alignment_is_plain_sgd_whatever_the_training(training: str) -> None:
    """Where training moves nothing, what is left is the alignment."""
    aligned = []
    for setting in ("epochs=1", training):
        trial = experiment(tiny("fedas", "model.name=mlp", "local.lr=1e-30", "local.align_lr=0.1", f"local.{setting}"))
        drift = torch.randn(trial.parameters, generator=torch.Generator().manual_seed(0))
        state = trial.initial_state()
        aligned.append(trial.advance(replace(state, shared=state.shared + 0.01 * drift))[0].shared)
    torch.testing.assert_close(aligned[1], aligned[0], rtol=0, atol=1e-7)


def test_the_personal_model_is_that_of_the_last_participation() -> None:
    trial = experiment(tiny("fedas", "model.name=mlp"))
    run_rounds(trial, 1)
    own = trial.engine.states.changed()
    assert own[0].keys() == {"body", "personal"}
    visit = visit_of(trial, 0, own[0])
    load(visit)
    trial._trainer.personalise(visit)
    assert torch.equal(visit.model.shared, own[0]["body"])
    assert not torch.equal(own[0]["personal"], own[1]["personal"])
    stranger = visit_of(trial, 0)
    load(stranger)
    trial._trainer.personalise(stranger)
    assert torch.equal(stranger.model.shared, model_of(trial).initial_values[Group.SHARED])


# --------------------------------------------------------------------------------------------------------- bookkeeping


def test_a_diverged_round_leaves_no_trace_in_the_client() -> None:
    config: Config = tiny("scaffold")
    trial = experiment(config)
    state, _ = run_rounds(trial, 1)
    before = trial.engine.states.changed()
    poisoned = replace(state, shared=torch.full_like(state.shared, float("inf")))
    trial.advance(poisoned)
    assert trial.engine.states.changed() == {}
    assert before.keys() == {0, 1, 2, 3}


@pytest.mark.parametrize("name", COMPOSING)
def test_omg_sends_not_one_byte_more(name: str) -> None:
    configs = [tiny(method, network(name)) for method in (name, f"{name}+omg")]
    sent = [[record["bytes"] for record in run_rounds(experiment(config))[1]] for config in configs]
    assert sent[0] == sent[1]


def test_a_method_that_shares_nothing_of_a_model_says_so() -> None:
    with pytest.raises(UserError, match='method "fedbabu" shares no parameter of model "linear"'):
        experiment(tiny("fedbabu"))
