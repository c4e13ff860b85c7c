"""StableFDG against its equations."""

import random
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.support import experiment, model_of, network, run_rounds, shared_after, tiny
from torch import Tensor, nn

from fedomg.core.errors import UserError
from fedomg.core.params import Group
from fedomg.core.records import Broadcast, Reply
from fedomg.core.rng import Streams
from fedomg.experiment.config import Config
from fedomg.experiment.experiment import Experiment
from fedomg.local.loop import Task, Visit
from fedomg.local.styles import (
    drawn_from,
    extrapolated,
    mixed,
    partners,
    rarest,
    representative,
    style_of,
    summary,
    with_style,
    without_style,
)
from fedomg.local.trainer import load
from fedomg.methods.stablefdg import Highlighted, Others, StableFdg, StableFdgCoordinator, StableFdgOptions, _Pass
from fedomg.models import build_model
from fedomg.models.split import split

MAPS = network("stablefdg")
OFF = ("local.sharing=0", "local.exploration=0")
IMAGES: dict[str, Any] = {"dataset": "tests.pictures:Pictures", "target": "blue", "model": {"name": "tiny_resnet"}, "data": {}}
SECOND_STAGE = 1


def _visit(trial: Experiment, **extras: Tensor) -> Visit:
    model = model_of(trial)
    broadcast = Broadcast(2, model.initial_values[Group.SHARED].clone(), model.initial_buffers, extras)
    visit = Visit(Task(model, trial.config.local, 1), trial.federation.clients[0], broadcast, {}, Streams(0, 2, "fit", 0))
    load(visit)
    return visit


def _highlighted(trial: Experiment) -> Highlighted:
    module = model_of(trial).module
    assert isinstance(module, Highlighted)
    return module


def _pass(visit: Visit, labels: Tensor) -> _Pass:
    options = visit.task.options
    assert isinstance(options, StableFdgOptions)
    return _Pass(options, visit, labels, random.Random(0))


# -------------------------------------------------------------------------------------------------------------- styles


def test_a_style_is_mean_and_unbiased_deviation_over_space() -> None:
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]], requires_grad=True)
    style = style_of(maps)
    torch.testing.assert_close(style, torch.tensor([[[3.0], [(14 / 3 + 1e-6) ** 0.5]]]))
    assert not style.requires_grad
    assert style_of(torch.ones(2, 3, 1, 1)).isfinite().all()


def test_own_style_is_the_identity_and_another_one_is_taken_on() -> None:
    maps, styles = torch.randn(4, 3, 5, 5), torch.rand(4, 2, 3) + 0.5
    torch.testing.assert_close(with_style(without_style(maps, style_of(maps)), style_of(maps)), maps)
    torch.testing.assert_close(style_of(with_style(without_style(maps, style_of(maps)), styles)), styles, rtol=1e-4, atol=1e-4)


def test_extrapolation_and_mixing_without_their_strength_are_the_identity() -> None:
    styles, order = torch.rand(4, 2, 3), torch.tensor([1, 2, 3, 0])
    assert torch.equal(extrapolated(styles, order, 0.0), styles[order])
    assert torch.equal(mixed(styles, order, torch.ones(4)), styles)
    assert torch.equal(mixed(styles, order, torch.zeros(4)), styles[order])
    torch.testing.assert_close(extrapolated(styles, order, 3.0), 4 * styles[order] - 3 * styles.mean(dim=0))


def test_styles_are_drawn_from_the_summary() -> None:
    styles = torch.rand(500, 2, 3) + torch.tensor([-3.0, 0.0]).view(1, 2, 1)
    told = summary(styles)
    torch.testing.assert_close(told, torch.stack([styles.mean(dim=0), styles.std(dim=0)]))
    drawn = drawn_from(told, 20_000)
    torch.testing.assert_close(drawn[:, 0].mean(dim=0), styles[:, 0].mean(dim=0), rtol=0, atol=0.02)
    torch.testing.assert_close(drawn[:, 0].std(dim=0), styles[:, 0].std(dim=0), rtol=0.05, atol=0)
    assert bool((drawn[:, 1] >= 0).all())
    assert bool((drawn[:, 0] < 0).any())
    assert summary(styles[:1]).isfinite().all()


def test_representatives_find_the_clusters() -> None:
    groups = torch.tensor([0.0, 10.0, 20.0]).repeat_interleave(4)
    styles = (groups + torch.tensor([-0.3, -0.1, 0.1, 0.3]).repeat(3)).view(12, 1, 1).expand(12, 2, 5)
    for _ in range(5):
        torch.testing.assert_close(representative(styles, 3)[:, 0, 0].sort().values, torch.tensor([0.0, 10.0, 20.0]))
    assert representative(styles[:1].expand(4, 2, 5), 3).isfinite().all()  # all styles equal


@pytest.mark.parametrize(
    ("labels", "count", "expected"),
    [
        ([0, 0, 0, 1, 2, 2], 3, {1: 2, 2: 1}),
        ([0, 0, 0, 1, 2, 2], 12, {0: 3, 1: 5, 2: 4}),
        ([1, 1], 5, {1: 5}),
    ],
)
def test_oversampling_levels_the_classes(labels: list[int], count: int, expected: dict[int, int]) -> None:
    found = torch.tensor(labels)[rarest(torch.tensor(labels), 4, count)].tolist()
    assert Counter(found) == expected


def test_oversampling_repeats_an_example_only_after_the_others_of_its_class() -> None:
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 1])
    assert sorted(rarest(labels, 2, 3).tolist()) == [6, 7, 8]


def test_partners_go_in_a_circle_within_the_class() -> None:
    found = partners(torch.tensor([2, 0, 2, 1, 2, 0]), 4)
    assert found.positions.tolist() == [2, 5, 4, 3, 0, 1]
    assert found.alone.tolist() == [False, False, False, True, False, False]


# --------------------------------------------------------------------------------------------------------------- passes


def test_without_its_parts_it_is_fedavg() -> None:
    found = shared_after(tiny("stablefdg", MAPS, *OFF, "local.attention=false"))
    assert torch.equal(found, shared_after(tiny("fedavg", MAPS, "aggregator.weighting=uniform")))


def test_with_the_attention_half_zeroed_it_answers_as_the_model_alone() -> None:
    trial, plain = experiment(tiny("stablefdg", MAPS)), experiment(tiny("fedavg", MAPS))
    module = _highlighted(trial)
    inputs = torch.randn(5, 2)
    assert not torch.equal(module(inputs), model_of(plain).module(inputs))
    with torch.no_grad():
        module.highlight.weight.zero_()
    assert torch.equal(module(inputs), model_of(plain).module(inputs))


def test_attention_is_the_published_one() -> None:
    """Each pair of a query's and a key's position first, then the average over the queries'."""
    trial = experiment(tiny("stablefdg", **IMAGES))
    module, maps, partner = _highlighted(trial), torch.rand(3, 64, 2, 2), torch.tensor([1, 2, 0])
    queries, keys = (F.normalize(half * 30**-0.5, dim=1).flatten(2) for half in module.attention(maps).chunk(2, dim=1))
    pairs = torch.einsum("ncq,nck->nqk", (queries + queries[partner]) / 2, keys)
    expected = pairs.mean(dim=1).softmax(dim=1)
    own, own_keys = module.attend(maps)
    weights = module.weights((own + own[partner]) / 2, own_keys)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(3))
    assert module.attention.weight.shape == (60, 64, 1, 1)


def test_sharing_gives_half_the_batch_received_styles() -> None:
    trial = experiment(tiny("stablefdg", "local.sharing=1", "local.exploration=0", **IMAGES))
    received = torch.stack([torch.tensor([[5.0], [2.0]]).expand(2, 16), torch.zeros(2, 16)])
    visit, maps = _visit(trial, style=received), torch.randn(6, 16, 8, 8)
    styled = _pass(visit, torch.zeros(6, dtype=torch.long)).at_stage(0, maps)
    torch.testing.assert_close(style_of(styled)[3:], torch.tensor([[5.0], [2.0]]).expand(3, 2, 16), rtol=1e-4, atol=1e-4)
    assert float(style_of(styled)[:3, 0].abs().max()) < 1
    torch.testing.assert_close(without_style(styled, style_of(styled)), without_style(maps, style_of(maps)), rtol=1e-3, atol=1e-3)
    quiet = _pass(_visit(trial), torch.zeros(6, dtype=torch.long))
    assert torch.equal(quiet.at_stage(0, maps), maps)


def test_the_first_active_exploration_alone_oversamples() -> None:
    trial = experiment(tiny("stablefdg", "local.exploration=1", "local.oversampling=5", **IMAGES))
    styled = _pass(_visit(trial), torch.tensor([0, 0, 0, 1]))
    maps = styled.at_stage(0, torch.randn(4, 16, 8, 8))
    assert len(maps) == len(styled.labels) == 9
    assert styled.labels[:4].tolist() == [0, 0, 0, 1]
    assert len(styled.at_stage(SECOND_STAGE, torch.randn(9, 32, 4, 4))) == len(styled.labels) == 9
    last = torch.randn(9, 64, 2, 2)
    assert torch.equal(styled.at_stage(2, last), last)


def test_exploration_without_its_strength_is_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedomg.methods.stablefdg.Beta.sample", lambda self, shape: torch.ones(shape))
    trial = experiment(tiny("stablefdg", "local.exploration=1", "local.extrapolation=0", "local.oversampling=3", **IMAGES))
    styled, maps = _pass(_visit(trial), torch.tensor([0, 0, 1, 1])), torch.randn(4, 16, 8, 8)
    explored = styled.at_stage(0, maps)
    torch.testing.assert_close(explored[:4], maps, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(explored[4:], _nearest(explored[4:], maps), rtol=1e-4, atol=1e-5)


def _nearest(these: Tensor, among: Tensor) -> Tensor:
    return among[torch.cdist(these.flatten(1), among.flatten(1)).argmin(dim=1)]


def test_who_is_alone_takes_the_query_of_its_own_label() -> None:
    """The published code picks it by the position of the class in a batch of random order."""
    trial = experiment(tiny("stablefdg", **IMAGES))
    visit, module = _visit(trial), _highlighted(trial)
    client, buffers = trial.federation.clients[0], {name: value.clone() for name, value in visit.model.buffers.items()}
    module.train()
    table = Others.of(visit).queries(visit, module)
    assert module.training
    assert all(torch.equal(value, visit.model.buffers[name]) for name, value in buffers.items())
    module.eval()
    for label in range(3):
        members = (client.train.labels == label).nonzero().flatten()
        candidates, _ = module.attend(module.looked_at(client.train.batch(members).inputs)[1])
        assert float((candidates - table[label]).abs().amax(dim=1).min().detach()) < 1e-5


def test_batchnorm_statistics_move_once_a_step() -> None:
    trial = experiment(tiny("stablefdg", "local.steps=3", "local.oversampling=0", "rounds=2", **IMAGES))
    state, _ = run_rounds(trial)
    assert int(state.buffers["body.1.num_batches_tracked"]) == 6


# ----------------------------------------------------------------------------------------------------------- the server


def _coordinator(**options: Any) -> StableFdgCoordinator:
    return StableFdgCoordinator(StableFdgOptions(**options))


def test_styles_are_asked_of_a_cohort_from_the_second_round_on() -> None:
    def names(round: int, cohort: list[int], **options: Any) -> list[str]:
        return [phase.name for phase in _coordinator(**options).phases(round, cohort)]

    assert names(1, [0, 1]) == ["fit"]
    assert names(2, [0, 1]) == ["styles", "fit"]
    assert names(2, [0]) == ["fit"]
    assert names(2, [0, 1], sharing=0.0) == ["fit"]


def test_nobody_is_sent_its_own_style_and_each_style_goes_to_one() -> None:
    coordinator = _coordinator()
    lots = {2: 0.9, 4: 0.1, 5: 0.5}
    replies = [
        Reply(client, extras={"style": torch.full((2, 2, 1), float(client)), "lot": torch.tensor(lot)}) for client, lot in lots.items()
    ]
    state = coordinator.collect("styles", replies, None, {})
    sent = {client: float(coordinator.extras("fit", client, state)["style"].flatten()[0]) for client in lots}
    assert sent == {4: 5.0, 5: 2.0, 2: 4.0}
    assert coordinator.extras("view:adapted", 0, state)
    assert coordinator.extras("view:global", 2, state) == {}
    assert coordinator.collect("fit", replies, None, state) is state
    alone = coordinator.collect("styles", replies[:1], None, {})
    assert coordinator.extras("fit", 2, alone) == {}


def test_the_circle_changes_from_round_to_round() -> None:
    trial = experiment(tiny("stablefdg", MAPS, "rounds=6"))
    state, circles = trial.initial_state(), set()
    for _ in range(6):
        state, record = trial.advance(state)
        assert record["dropped"] == []
        circles.add(tuple(state.coordinator.get("circle", torch.tensor([])).tolist()))
    assert len(circles) > 3


def test_the_styles_are_those_of_all_training_images_after_the_first_stage() -> None:
    trial = experiment(tiny("stablefdg", **IMAGES))
    visit, client = _visit(trial), trial.federation.clients[0]
    assert isinstance(trial._trainer, StableFdg)
    before = {name: value.clone() for name, value in visit.model.buffers.items()}
    told = trial._trainer.gather("styles", visit)
    body = split(visit.model.module).body
    assert isinstance(body, nn.Sequential)
    maps = body[:4].eval()(client.train.batch(torch.arange(len(client.train))).inputs)
    torch.testing.assert_close(told["style"], summary(style_of(maps)))
    assert told["style"].shape == (2, 2, 16)
    assert all(torch.equal(value, visit.model.buffers[name]) for name, value in before.items())


# --------------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("name", ["cnn", "tiny_resnet", "resnet18", "resnet50", "mobilenet_v2"])
def test_the_stages_of_our_models_are_maps_of_the_stated_channels(name: str) -> None:
    model = build_model(name, (3, 32, 32), 5).eval()
    inputs, seen = torch.randn(2, 3, 32, 32), []

    def look(stage: int, maps: Tensor) -> Tensor:
        seen.append((stage, maps.ndim, maps.shape[1]))
        return maps

    assert torch.equal(model.through(inputs, look), model.body(inputs))
    assert seen == [(stage, 4, channels) for stage, channels in enumerate(model.stages.values())]
    assert torch.equal(model.through(inputs, lambda stage, maps: maps * 0), model.through(inputs, lambda stage, maps: maps * 0))
    assert not torch.equal(model.through(inputs, lambda stage, maps: maps + 1), model.body(inputs))


def test_a_model_without_stages_is_refused() -> None:
    with pytest.raises(UserError, match="stages of feature maps"):
        experiment(tiny("stablefdg", "model.name=mlp"))


def test_it_learns_pictures() -> None:
    config: Config = tiny("stablefdg+omg", "rounds=6", "local.lr=0.05", "local.epochs=4", **IMAGES)
    assert run_rounds(experiment(config))[1][-1]["views"]["global"]["accuracy"] > 0.8  # a third by chance
