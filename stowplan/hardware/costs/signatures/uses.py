"""Which of a step's uses its latency table tells apart: it has a row for each subset, so that they are few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from stowplan.hardware.costs.signatures.features import NEGLIGIBLE
from stowplan.hardware.costs.signatures.instruction import StepSignature
from stowplan.models.memory_mapping.problem import MAX_TABLE_USES

Array = NDArray[np.float64]

#: A use that changes predicted cycles by less than this part, whatever the others do, is no part of a step's table.
IDLE = 0.01


def significant(step: StepSignature) -> set[int]:
    """Uses that move more than a hundredth of the step's bytes. By the estimates of compilers others hardly ever matter."""
    moved: dict[int, int] = {}
    for leaf in step.leaves:
        moved[leaf.use] = moved.get(leaf.use, 0) + leaf.moved
    return {use for use in step.used_leaves() if moved[use] > NEGLIGIBLE * sum(moved.values())}


def choose(of_use: Mapping[int, int], rows: Mapping[int, int], worth: Mapping[int, float], count: int) -> list[int]:
    """Uses to tell apart, ascending: those of most worth, and those that measured cycles depend on.

    Parameters
    ----------
    of_use
        Pattern of the leaves of each use.
    rows
        Measured cycles by pattern. Where two differ in cycles but not in the uses chosen, a use that tells them apart comes in.
    worth
        Of each use.
    count
        How many to begin with; more than eight never stay.
    """
    chosen = sorted(of_use, key=lambda use: (-worth[use], use))[: min(count, MAX_TABLE_USES)]
    while (use := _telling(rows, of_use, chosen)) is not None:
        chosen.append(use)
        if len(chosen) <= MAX_TABLE_USES:
            continue
        # Out goes the one of least worth without which no more measured patterns fall together.
        upto = lost(rows, of_use, chosen)
        for other in sorted(chosen[:-1], key=lambda each: (worth[each], -each)):
            kept = [each for each in chosen if each != other]
            if lost(rows, of_use, kept) <= upto:
                chosen = kept
                break
        else:
            chosen.pop()
            break
    return sorted(chosen)


def lost(rows: Mapping[int, int], of_use: Mapping[int, int], chosen: Sequence[int]) -> int:
    """Measured patterns that the chosen uses do not tell apart: their spread in cycles, summed up."""
    mask = sum(of_use[use] for use in chosen)
    alike: dict[int, list[int]] = {}
    for pattern, cycles in rows.items():
        alike.setdefault(pattern & mask, []).append(cycles)
    return sum(max(cycles) - min(cycles) for cycles in alike.values())


def _telling(rows: Mapping[int, int], of_use: Mapping[int, int], chosen: Sequence[int]) -> int | None:
    """The use that tells most apart of what the chosen ones do not; None where none does."""
    before = lost(rows, of_use, chosen)
    others = [use for use in of_use if use not in chosen] if before else []
    after, best = min(((lost(rows, of_use, [*chosen, use]), use) for use in others), default=(before, -1))
    return best if after < before else None


def without_idle(
    uses: tuple[int, ...], cycles: Array, is_known: NDArray[np.bool_]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """A table without the uses that make next to no difference: less than :data:`IDLE` everywhere, and none that was measured.

    Differences as small as these are noise of the prediction; an optimizer would go after them.
    """
    while uses:
        shape = (2,) * len(uses)
        # The last axis is the first use.
        values, known = cycles.reshape(shape), is_known.reshape(shape)
        effects = []
        for bit in range(len(uses)):
            (slow, fast), (slow_known, fast_known) = (np.moveaxis(each, -1 - bit, 0) for each in (values, known))
            change = np.abs(fast - slow) / np.maximum(np.minimum(slow, fast), 1)
            effects.append(float(np.where(slow_known & fast_known & (slow != fast), np.inf, change).max()))
        bit = int(np.argmin(effects))
        if effects[bit] > IDLE:
            break
        (slow, fast), (slow_known, fast_known) = (np.moveaxis(each, -1 - bit, 0) for each in (values, known))
        cycles = np.where(fast_known & ~slow_known, fast, slow).ravel()
        is_known = (slow_known | fast_known).ravel()
        uses = uses[:bit] + uses[bit + 1 :]
    return uses, tuple(cycles.tolist())
