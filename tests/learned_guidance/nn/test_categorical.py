"""Supports: two-hot distributions mean what they stand for."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from stowplan.errors import InputError  # noqa: E402
from stowplan.learned_guidance.nn import Support  # noqa: E402


def test_atoms_are_signed_squares() -> None:
    assert Support(5, 8.0).atoms.tolist() == [-8, -2, 0, 2, 8]
    atoms = Support(61, 3.7).atoms
    assert atoms.dtype == torch.float32
    assert torch.equal(atoms, -atoms.flip(0))
    gaps = atoms.diff()
    assert (gaps > 0).all()
    assert gaps[30] == gaps.min()  # Densest around 0.


@given(
    half=st.integers(1, 40),
    limit=st.floats(1e-3, 1e3),
    shares=st.lists(st.floats(-1.5, 1.5, width=32), min_size=1, max_size=8),
)
def test_two_hot_has_the_mean_it_stands_for(half: int, limit: float, shares: list[float]) -> None:
    support = Support(2 * half + 1, limit)
    x = torch.tensor(shares) * limit
    found = support.two_hot(x)
    assert found.shape == (len(shares), support.bins)
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(len(shares)))
    torch.testing.assert_close(found @ support.atoms, x.clamp(-limit, limit), rtol=1e-5, atol=1e-5 * limit)
    for row in found:
        places = row.nonzero().flatten().tolist()
        assert len(places) <= 2
        assert places[-1] - places[0] <= 1


def test_atoms_are_one_hot() -> None:
    support = Support(7, 2.0)
    torch.testing.assert_close(support.two_hot(support.atoms), torch.eye(7))


def test_any_shape() -> None:
    x = torch.rand(2, 3, 4)
    support = Support(9, 1.0)
    assert support.two_hot(x).shape == (2, 3, 4, 9)
    torch.testing.assert_close(support.mean(support.two_hot(x).clamp_min(1e-12).log()), x, rtol=1e-4, atol=1e-4)


def test_mean_of_even_odds_is_zero() -> None:
    assert Support(61, 8.0).mean(torch.zeros(3, 61)).abs().max() < 1e-6


def test_training_towards_two_hot_finds_the_mean() -> None:
    support = Support(21, 2.0)
    target = torch.tensor([0.3, -1.2])
    logits = torch.zeros(2, 21, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.3)
    for _ in range(100):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, support.two_hot(target)).backward()
        optimizer.step()
    torch.testing.assert_close(support.mean(logits), target, rtol=0, atol=0.02)


@pytest.mark.parametrize(
    ("bins", "limit", "message"),
    [
        (4, 1.0, "bins: found 4 bins, expected an odd number"),
        (1, 1.0, "bins: found 1 bins"),
        (3, 0.0, "limit: found a limit of 0.0"),
        (3, float("inf"), "limit: found a limit of inf"),
        (3, float("nan"), "limit: found a limit of nan"),
    ],
)
def test_bad_supports_are_refused(bins: int, limit: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Support(bins, limit)
