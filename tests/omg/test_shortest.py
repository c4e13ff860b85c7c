import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedomg.omg import shortest


def test_two_vectors_weigh_inversely_to_their_squares() -> None:
    assert shortest(torch.diag(torch.tensor([1.0, 3.0], dtype=torch.float64))).tolist() == pytest.approx([0.75, 0.25])


def test_a_zero_matrix_leaves_the_weights_even() -> None:
    assert shortest(torch.zeros(3, 3, dtype=torch.float64)).tolist() == pytest.approx([1 / 3] * 3)


def test_zero_in_the_hull_is_reached() -> None:
    rows = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0], [5.0, 5.0]], dtype=torch.float64)
    weights = shortest(rows @ rows.T)
    assert float((weights @ rows).norm()) == pytest.approx(0, abs=1e-6)


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 10**6), st.sampled_from([1e-8, 1.0, 1e8]))
def test_no_vector_is_shorter_along_the_answer(count: int, size: int, seed: int, scale: float) -> None:
    rows = scale * torch.randn(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    gram = rows @ rows.T
    weights = shortest(gram)
    assert weights.min() >= 0
    assert float(weights.sum()) == pytest.approx(1)
    inner = gram @ weights
    assert float(weights @ inner - inner.min()) <= 1e-9 * float(gram.diagonal().mean())
