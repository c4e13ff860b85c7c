import pytest
import torch
from torch import nn

from fedomg.core.params import FlatModel, Group, is_finite


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def _head_is_personal(name: str) -> Group:
    return Group.PERSONAL if name.startswith("2.") else Group.SHARED


def test_vectors_hold_the_parameters_in_registration_order() -> None:
    module = _net()
    expected = torch.cat([p.detach().reshape(-1).clone() for p in module.parameters()])
    model = FlatModel(module, lambda name: Group.SHARED)
    assert torch.equal(model.shared, expected)


def test_the_module_computes_with_the_vector() -> None:
    model = FlatModel(_net(), lambda name: Group.SHARED)
    model.shared.zero_()
    assert all(not parameter.any() for parameter in model.module.parameters())


def test_gradients_arrive_in_the_vectors_of_the_trained_groups_alone() -> None:
    model = FlatModel(_net(), _head_is_personal)
    model.train_only((Group.PERSONAL,))
    model.module(torch.randn(5, 3)).square().sum().backward()
    assert model.gradients[Group.PERSONAL].abs().sum() > 0
    assert not model.gradients[Group.SHARED].any()


def test_load_sets_everything_and_falls_back_to_the_initial_values() -> None:
    model = FlatModel(_net(), _head_is_personal)
    initial = model.values[Group.PERSONAL].clone()
    model.values[Group.PERSONAL].add_(1)
    model.buffers["1.running_mean"].add_(1)
    model.load(torch.zeros_like(model.shared), None, {})
    assert torch.equal(model.values[Group.PERSONAL], initial)
    assert not model.shared.any()
    assert not model.buffers["1.running_mean"].any()


def test_tied_parameters_count_once() -> None:
    first = nn.Linear(3, 3)
    module = nn.Sequential(first, first)
    model = FlatModel(module, lambda name: Group.SHARED)
    assert len(model.shared) == 12
    model.shared.fill_(2.0)
    assert torch.equal(first.weight, torch.full((3, 3), 2.0))
    assert module[1] is first


def test_other_types_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"0\.weight"):
        FlatModel(_net().double(), lambda name: Group.SHARED)


def test_batchnorm_is_noticed() -> None:
    assert FlatModel(_net(), lambda name: Group.SHARED).has_batchnorm
    assert not FlatModel(nn.Linear(2, 2), lambda name: Group.SHARED).has_batchnorm


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 1, 99])
def test_one_value_that_is_not_finite_is_found(dtype: torch.dtype, value: float, place: int) -> None:
    tensor = torch.linspace(-3, 3, 100, dtype=dtype).reshape(4, 25)
    assert is_finite(tensor)
    tensor.view(-1)[place] = value
    assert not is_finite(tensor)
    assert not is_finite(tensor.t())


def test_integers_and_nothing_are_finite() -> None:
    assert all(is_finite(tensor) for tensor in (torch.tensor(3), torch.tensor([True]), torch.empty(0), torch.tensor(2.0)))
