"""Who takes part in a round."""

import torch

from fedomg.core.rng import generator


def cohort_size(clients: int, participation: float) -> int:
    return max(1, int(participation * clients + 0.5))


def sample_cohort(clients: int, participation: float, seed: int, round: int) -> list[int]:
    """Uniformly without replacement, fresh each round; depends on the seed and the round alone, so all methods see the same."""
    draw = torch.randperm(clients, generator=generator(seed, "cohort", round))
    return sorted(draw[: cohort_size(clients, participation)].tolist())
