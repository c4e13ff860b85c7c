"""FedSR against its equations."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.support import experiment, model_of, run_rounds, tiny
from torch import Tensor, nn

from fedomg.core.errors import UserError
from fedomg.core.params import Group
from fedomg.core.records import Broadcast
from fedomg.core.rng import Streams
from fedomg.data.examples import Batch
from fedomg.experiment.experiment import Experiment
from fedomg.local.loop import Task, Visit
from fedomg.local.trainer import load
from fedomg.methods import fedsr
from fedomg.methods.fedsr import FedSr, FedSrOptions, Gaussian, divergence
from fedomg.models.mlp import mlp
from fedomg.models.split import SplitModel

MLP = "model.name=mlp"
PLAIN = ("local.norm_weight=0", "local.information_weight=0")


def _visit(trial: Experiment) -> Visit:
    model = model_of(trial)
    broadcast = Broadcast(1, model.initial_values[Group.SHARED].clone(), model.initial_buffers)
    visit = Visit(Task(model, trial.config.local, 1), trial.federation.clients[0], broadcast, {}, Streams(0, 1, "fit", 0))
    load(visit)
    return visit


def _gaussian(trial: Experiment) -> Gaussian:
    module = model_of(trial).module
    assert isinstance(module, Gaussian)
    return module


def _numbers(*values: float) -> list[Tensor]:
    return [torch.tensor(value) for value in values]


def test_the_divergence_of_gaussians() -> None:
    assert float(divergence(*_numbers(1, 1, 0, 1))) == pytest.approx(0.5)
    assert float(divergence(*_numbers(0.3, 0.7, 0.3, 0.7))) == pytest.approx(0, abs=1e-7)
    one, other = torch.distributions.Normal(0.4, 1.5), torch.distributions.Normal(-1.0, 0.6)
    expected = torch.distributions.kl_divergence(one, other)
    torch.testing.assert_close(divergence(*_numbers(0.4, 1.5, -1.0, 0.6)), expected)


def test_the_loss_is_the_sum_of_its_three_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Gaussian of mean (3, 4) and no width: length 5; the references of the class, and a scale of 2, enter the information."""
    monkeypatch.setattr(fedsr, "SMALLEST_DEVIATION", 0.0)
    trial = experiment(tiny("fedsr", "local.norm_weight=10", "local.information_weight=100"))
    visit, module = _visit(trial), _gaussian(trial)
    with torch.no_grad():
        module.gaussian.weight.zero_()
        module.gaussian.bias.copy_(torch.tensor([3.0, 4.0, math.log(math.expm1(0.5)), math.log(math.expm1(0.5))]))
        module.reference.mean.copy_(torch.tensor([[0.0, 0.0], [5.0, 8.0]]))
        module.reference.raw_deviation.fill_(math.log(math.expm1(2.0)))
        module.reference.log_scale.fill_(math.log(2.0))
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    inputs, labels = torch.randn(6, 2), torch.ones(6, dtype=torch.long)
    loss = trial._trainer._loss(visit, [Batch(inputs, labels)])  # type: ignore[attr-defined]
    classified = F.cross_entropy(module.head(torch.tensor([[3.0, 4.0]])), labels[:1])
    information = 2 * (math.log(2) - math.log(1)) + (1 + 1) / 8 + (1 + 0) / 8 - 1
    torch.testing.assert_close(loss, classified + 10 * 5 + 100 * information)


def test_references_start_as_published() -> None:
    reference = _gaussian(experiment(tiny("fedsr", MLP))).reference
    assert reference.mean.shape == (2, 200)
    assert not reference.mean.any()
    assert bool((reference.raw_deviation == 1).all())
    assert not reference.log_scale.any()  # a scale of one


class _Deterministic(FedSr):
    """FedAvg on the same layers: features are their means."""

    def _loss(self, visit: Visit, batches: list[Batch]) -> Tensor:
        (inputs, labels), *_ = batches
        model = visit.model.module
        assert isinstance(model, Gaussian)
        return F.cross_entropy(model.head(model.distribution(inputs)[0]), labels)


def test_without_penalties_and_width_it_is_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedsr, "SMALLEST_DEVIATION", 0.0)
    ends = []
    for trainer in (FedSr, _Deterministic):
        trial = experiment(tiny("fedsr", MLP, *PLAIN))
        trial._trainer.stages = trainer(trial.config.local).stages  # type: ignore[arg-type, method-assign]
        start = trial.initial_state()
        weight, bias = _narrow(trial, start.shared)
        before = start.shared.clone()
        end, _ = trial.advance(start)
        assert not torch.equal(end.shared, before)
        assert bool((end.shared[bias] == -200).all())
        assert not end.shared[weight].any()
        ends.append(end.shared)
    assert torch.equal(*ends)


def _narrow(trial: Experiment, shared: Tensor) -> tuple[slice, slice]:
    """Sets every deviation to softplus(-200), which is zero; says where in the shared vector they come from."""
    places, position = {}, 0
    for name, parameter in model_of(trial).parameters[Group.SHARED]:
        half = parameter.numel() // 2
        places[name] = slice(position + half, position + 2 * half)
        position += parameter.numel()
    weight, bias = places["gaussian.weight"], places["gaussian.bias"]
    shared[weight] = 0
    shared[bias] = -200
    return weight, bias


def test_the_classifier_learns_and_every_part_with_it() -> None:
    """The code published with FedOMG makes classifier and references anew for every batch, and stays at chance."""
    trial = experiment(tiny("fedsr", MLP, "rounds=6"))
    model, start = model_of(trial), trial.initial_state()
    before = {name: parameter.detach().clone() for name, parameter in model.module.named_parameters()}
    state, records = run_rounds(trial)
    visit = _visit(trial)
    model.load(state.shared, trial.engine.states.of(0)["personal"], {})
    assert len(state.shared) == sum(tensor.numel() for name, tensor in before.items() if not name.startswith("reference."))
    assert len(start.shared) == len(state.shared)
    assert [name for name, parameter in visit.model.module.named_parameters() if torch.equal(parameter, before[name])] == []
    assert records[-1]["views"]["global"]["accuracy"] > 0.9


def test_references_stay_with_their_client() -> None:
    trial = experiment(tiny("fedsr+omg", MLP))
    _, records = run_rounds(trial, 1)
    own = [state["personal"] for state in trial.engine.states.changed().values()]
    assert [len(personal) for personal in own] == [2 * 2 * 200 + 1] * 4
    assert not torch.equal(own[0], own[1])
    assert records[0]["bytes"]["up"] == 4 * 4 * trial.parameters


def test_a_prediction_is_the_mean_of_the_softmax_over_draws() -> None:
    torch.manual_seed(0)
    module = FedSr(FedSrOptions(samples=3)).module(mlp((2,), 4)).eval()
    assert isinstance(module, Gaussian)
    inputs, noise = torch.randn(5, 2), torch.Generator().manual_seed(0)
    draws = torch.randn(3, 200, generator=noise)
    mean, deviation = module.distribution(inputs)
    expected = torch.stack([module.head(mean + deviation * draw).softmax(dim=1) for draw in draws]).mean(dim=0)
    torch.testing.assert_close(module(inputs).exp(), expected)


def test_a_prediction_depends_on_model_and_input_alone() -> None:
    """Not on the global generator, nor on the other examples of its batch."""
    module = FedSr(FedSrOptions()).module(mlp((2,), 4)).eval()
    inputs = torch.randn(6, 2)
    whole = module(inputs)
    assert torch.equal(whole, module(inputs))
    torch.testing.assert_close(whole, torch.cat([module(inputs[:1]), module(inputs[1:])]))
    state = torch.random.get_rng_state()
    module(inputs)
    assert torch.equal(state, torch.random.get_rng_state())


def test_the_number_of_dimensions_is_a_choice() -> None:
    trial = experiment(tiny("fedsr", MLP, "local.dimensions=3"))
    assert _gaussian(trial).gaussian.weight.shape == (6, 200)
    assert run_rounds(trial, 1)[1][0]["dropped"] == []


@pytest.mark.parametrize("raw", [-1e4, 1e4])
def test_extreme_deviations_and_scales_stay_finite(raw: float) -> None:
    trial = experiment(tiny("fedsr"))
    visit, module = _visit(trial), _gaussian(trial)
    with torch.no_grad():
        module.gaussian.bias.fill_(raw)
        module.reference.raw_deviation.fill_(min(raw, 100.0))
        module.reference.log_scale.fill_(-5)
    loss = trial._trainer._loss(visit, [Batch(torch.zeros(2, 2), torch.tensor([0, 1]))])  # type: ignore[attr-defined]
    assert loss.isfinite()


def test_it_refuses_a_head_of_several_layers() -> None:
    with pytest.raises(UserError, match="one linear layer, not Sequential"):
        FedSr(FedSrOptions()).module(SplitModel(nn.Flatten(), nn.Sequential(nn.Linear(2, 2))))
