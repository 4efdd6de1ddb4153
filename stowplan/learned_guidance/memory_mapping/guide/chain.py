"""Both values of every access at once: a chain for each tensor, with a score for being fast and one for being kept.

A tensor's plan is a path through its accesses: each is fast or not, and where two in a row are fast, the tensor was kept
between them or not. A path's score is the sum of ``fast[j]`` over its fast accesses and ``keep[j]`` over its kept gaps; its
probability is in proportion to the exponential of that (a linear-chain conditional random field). The values of an access are
its marginals, so they agree with each other: no gap is kept more than either of its accesses is fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: A score that forbids.
NEVER = -30.0


def marginals(
    fast: Any, keep: Any, glued: Any, positions: Sequence[Any], softplus: Callable[[Any], Any], sigmoid: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Probabilities that each access is fast, and that its gap is kept; numpy arrays or tensors, of shape ``[accesses]``.

    Parameters
    ----------
    fast, keep : shape ``[accesses]``
        Scores. ``keep`` is :data:`NEVER` for gaps that nothing may be kept over, those after last accesses among them.
    glued : shape ``[accesses]``, of booleans
        Gaps that are kept exactly if their accesses are fast, both or neither.
    positions
        The second accesses of all tensors that have so many, the third ones, and so on.
    softplus, sigmoid
        Of the same library as the arrays.
    """
    both = softplus(keep)
    # Logarithms of the odds of being fast, by what comes before and the access itself, and by what comes after.
    ahead, behind = fast + 0.0, fast * 0.0
    for here in positions:
        before = here - 1
        odds = ahead[before]
        free = softplus(odds + both[before]) - softplus(odds)
        ahead[here] = fast[here] + _where(glued[before], odds + keep[before], free)
    for here in reversed(positions):
        before = here - 1
        odds = fast[here] + behind[here]
        free = softplus(odds + both[before]) - softplus(odds)
        behind[before] = _where(glued[before], odds + keep[before], free)
    served = sigmoid(ahead + behind)
    after = fast * 0.0
    after[:-1] = (fast + behind)[1:]
    # Weights of (slow, slow), (fast, slow), (slow, fast), (fast, fast) without and with keeping.
    total = softplus(ahead) + softplus(after + softplus(ahead + both) - softplus(ahead))
    kept = _exp(ahead + after + keep - total)
    return served, _where(glued, served, kept) * (keep > NEVER)


def _where(condition: Any, yes: Any, no: Any) -> Any:
    # Without a call of either library.
    return yes * condition + no * ~condition


def _exp(value: Any) -> Any:
    return value.exp() if hasattr(value, "exp") else _numpy_exp(value)


def _numpy_exp(value: Any) -> Any:
    import numpy as np

    return np.exp(value)
