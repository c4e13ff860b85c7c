import torch

from fedomg.core.rng import Streams, derive, generator, seeded_global_generator


def test_seeds_are_the_same_on_every_machine() -> None:
    assert derive(0, "cohort", 1) == 8293203248204822525


def test_every_part_of_the_place_matters() -> None:
    places = [
        (0, "a", 1, "fit", 2),
        (1, "a", 1, "fit", 2),
        (0, "b", 1, "fit", 2),
        (0, "a", 2, "fit", 2),
        (0, "a", 1, "view", 2),
        (0, "a", 1, "fit", 3),
    ]
    assert len({derive(*place) for place in places}) == len(places)


def test_streams_do_not_disturb_each_other() -> None:
    streams = Streams(0, 1, "fit", 2)
    first = torch.rand(3, generator=streams.generator("batches"))
    torch.rand(100, generator=streams.generator("noise"))
    assert torch.equal(first, torch.rand(3, generator=streams.generator("batches")))
    assert not torch.equal(first, torch.rand(3, generator=streams.generator("noise")))


def test_the_global_generator_is_seeded_inside_and_untouched_outside() -> None:
    before = torch.get_rng_state()
    with seeded_global_generator(0, "noise", 1):
        first = torch.rand(3)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(5)
    with seeded_global_generator(0, "noise", 1):
        assert torch.equal(first, torch.rand(3))


def test_generators_of_equal_place_draw_alike() -> None:
    assert torch.equal(torch.rand(4, generator=generator(3, "x")), torch.rand(4, generator=generator(3, "x")))
