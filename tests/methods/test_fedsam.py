"""FedSAM and MoFedSAM against their equations."""

from dataclasses import replace

import pytest
import torch
from tests.quadratics import Quadratics, path_of
from tests.support import experiment, model_of, run_rounds, shared_after, tiny, visit_of

from fedomg import methods
from fedomg.core.errors import UserError
from fedomg.core.params import Group
from fedomg.core.records import Reply
from fedomg.data.examples import Batch
from fedomg.local.loop import cross_entropy
from fedomg.local.trainer import load
from fedomg.methods.fedsam import sharpness_aware


def test_the_gradient_of_a_parabola_is_taken_a_little_further_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """a (w + rho sign(w)): with a = 2, w = 1 and rho = 0.1 that is 2.2. The weight starts positive."""
    trial = Quadratics(monkeypatch, 2.0).experiment("fedsam", (0.0,), "local.rho=0.1", "local.steps=1", "local.lr=0.1")
    start = replace(trial.initial_state(), shared=torch.ones(1))
    after, _ = trial.advance(start)
    assert float(after.shared) == pytest.approx(1 - 0.1 * 2.2, rel=1e-6)


def test_weight_decay_is_that_of_the_weight_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Quadratics(monkeypatch, 2.0).experiment("fedsam", (0.0,), "local.rho=0.1", "local.steps=1", "local.weight_decay=0.5")
    after, _ = trial.advance(replace(trial.initial_state(), shared=torch.ones(1)))
    assert float(after.shared) == pytest.approx(1 - 0.1 * (2.2 + 0.5), rel=1e-6)


def test_a_bound_on_the_gradient_is_on_the_one_stepped_with(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("local.rho=0.5", "local.steps=1", "local.clip=2.5")
    trial = Quadratics(monkeypatch, 2.0).experiment("fedsam", (0.0,), *keys)
    after, _ = trial.advance(replace(trial.initial_state(), shared=torch.ones(1)))
    assert float(after.shared) == pytest.approx(1 - 0.1 * 2.5, rel=1e-5)  # 2 before the ascent, 3 after


def test_where_the_gradient_vanishes_nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Quadratics(monkeypatch).experiment("fedsam", (1.0,), "local.rho=0.6")
    after, _ = trial.advance(replace(trial.initial_state(), shared=torch.ones(1)))
    assert float(after.shared) == 1.0


def test_the_ascent_is_along_all_parameters_jointly_and_undone_to_the_bit() -> None:
    trial = experiment(tiny("fedsam", "model.name=mlp"))
    visit, draw = visit_of(trial), torch.Generator().manual_seed(0)
    load(visit)
    model = visit.model
    model.train_only((Group.SHARED,))
    batches = [Batch(torch.randn(8, 2, generator=draw), torch.randint(2, (8,), generator=draw))]

    def gradient() -> torch.Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(cross_entropy(visit, batches), list(model.module.parameters()))])

    start, here = model.shared.clone(), gradient()
    model.shared.add_(here, alpha=0.3 / float(here.norm()))
    there = gradient()
    model.shared.copy_(start)
    assert not torch.allclose(here, there, rtol=1e-2)
    loss = sharpness_aware(visit, batches, rho=0.3)
    assert torch.equal(model.shared, start)
    torch.testing.assert_close(model.gradients[Group.SHARED], there, rtol=1e-4, atol=1e-6)
    assert torch.equal(loss, cross_entropy(visit, batches).detach())


@pytest.mark.parametrize("suffix", ["", "+omg"])
def test_with_the_whole_share_the_previous_direction_has_no_say(suffix: str) -> None:
    common = ("local.rho=0.3", "local.momentum=0.5", "model.name=mlp")
    assert torch.equal(shared_after(tiny(f"mofedsam{suffix}", "local.beta=1", *common)), shared_after(tiny(f"fedsam{suffix}", *common)))


def test_a_step_mixes_the_gradient_with_the_previous_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step a round: D is the last round's step direction, zero in the first."""
    keys = ("local.rho=0.2", "local.beta=0.7", "local.steps=1", "local.lr=0.1")
    path = path_of(Quadratics(monkeypatch, 2.0).experiment("mofedsam", (-5.0,), *keys), 3)
    expected, weight, previous = [], path[0], 0.0
    for _ in range(3):
        previous = 0.7 * 2 * (weight + 5 + 0.2) + 0.3 * previous
        weight -= 0.1 * previous
        expected.append(weight)
    assert path[1:] == pytest.approx(expected, rel=1e-5)


def test_the_previous_direction_is_the_mean_gradient_along_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients count by examples; a schedule, and momentum that has settled, leave the scale of a gradient."""
    coordinator = methods.build("mofedsam", tiny("mofedsam").local, tiny("mofedsam").aggregator).coordinator
    found = [Reply(0, samples=1, extras={"distance": torch.tensor(0.5)}), Reply(1, samples=3, extras={"distance": torch.tensor(0.1)})]
    updates = torch.tensor([[-1.0, 2.0], [-0.4, 0.0]])
    state = coordinator.collect("fit", found, updates, coordinator.initial(2, 2))
    assert state["previous"].tolist() == pytest.approx([(1 + 3 * 0.4) / (0.5 + 3 * 0.1), -2 / (0.5 + 3 * 0.1)])

    keys = ("local.schedule=cosine", "local.momentum=0.9", 'local.optimizer_state="persistent"', "local.lr=0.00001", "rounds=40")
    trial = Quadratics(monkeypatch).experiment("mofedsam", (5.0, 5.0), "local.rho=0", *keys)
    start = trial.initial_state()
    last, _ = run_rounds(trial)
    assert float(last.coordinator["previous"]) == pytest.approx(float(start.shared) - 5, rel=0.05)


def test_a_round_without_a_step_keeps_the_previous_direction() -> None:
    coordinator = methods.build("mofedsam", tiny("mofedsam").local, tiny("mofedsam").aggregator).coordinator
    state = {"previous": torch.ones(2)}
    idle = [Reply(0, samples=4, extras={"distance": torch.tensor(0.0)})]
    assert torch.equal(coordinator.collect("fit", idle, torch.zeros(1, 2), state)["previous"], torch.ones(2))


def test_the_matching_rule_leaves_the_previous_direction_as_it_was() -> None:
    plain, matched = (run_rounds(experiment(tiny(name, "model.name=mlp")), 1)[0] for name in ("mofedsam", "mofedsam+omg"))
    assert torch.equal(plain.coordinator["previous"], matched.coordinator["previous"])
    assert not torch.equal(plain.shared, matched.shared)


def test_updates_of_adam_are_no_mean_gradients() -> None:
    with pytest.raises(UserError, match="which only sgd allows"):
        tiny("mofedsam", "local.optimizer=adam")
    assert tiny("fedsam", "local.optimizer=adam").local.optimizer == "adam"


def test_the_matching_rule_sees_all_parameters() -> None:
    trial = experiment(tiny("fedsam+omg", "model.name=mlp"))
    assert trial.parameters == sum(parameter.numel() for parameter in model_of(trial).module.parameters())
