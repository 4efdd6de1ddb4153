"""The cost model ``signatures``: cycles from a latency table, and predictions with intervals for patterns without an entry.

Signatures, leaves and patterns are those of :mod:`stowplan.hardware.costs.signatures.table`. A pattern is *known* if the
latency table has cycles for it. A *use* is a read or a write of one tensor by a step; it is given by its position in the step's
list of uses. A use can have several leaves, if the tensor has several arrays.

In a memory-mapping problem, the latency of a step is a table with a row for each subset of some of its uses. The number of
these *distinguished* uses is at most eight. The choice of fast memory for other uses does not change the modelled latency.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError, UsageError
from stowplan.hardware.costs.signatures.predictor import (
    NEGLIGIBLE,
    Bits,
    Known,
    Prediction,
    Predictor,
    StepFacts,
    as_bits,
    shipped,
)
from stowplan.hardware.costs.signatures.table import LatencyTable, StepSignature
from stowplan.hardware.program import ProgramStep
from stowplan.hardware.targets import Target
from stowplan.models.memory_mapping.problem import MAX_TABLE_USES, Table

Array = NDArray[np.float64]

#: A use is removed from a step's table if it changes predicted cycles by at most this fraction, for every choice of memory for
#: the other uses.
IDLE = 0.01


def significant(step: StepSignature) -> set[int]:
    """Returns the uses that move more than a hundredth of the step's bytes. In estimates of compilers, all other uses rarely
    have an effect."""
    moved: dict[int, int] = {}
    for leaf in step.leaves:
        moved[leaf.use] = moved.get(leaf.use, 0) + leaf.moved
    return {use for use in step.used_leaves() if moved[use] > NEGLIGIBLE * sum(moved.values())}


def choose(of_use: Mapping[int, int], rows: Mapping[int, int], worth: Mapping[int, float], count: int) -> list[int]:
    """Chooses the distinguished uses of a step: those of largest worth, and those on which known cycles depend.

    The choice begins with the ``count`` uses of largest worth. Uses are added as long as two known patterns differ in cycles
    but agree in all chosen uses, and a further use distinguishes such patterns. If there are then more than eight uses, one is
    removed.

    Parameters
    ----------
    of_use
        For each use, the pattern in which exactly its leaves are in fast memory.
    rows
        Known cycles by pattern.
    worth
        For each use, the expected change of the cycles if it changes memory.
    count
        Number of uses with which the choice begins.

    Returns
    -------
    list of int
        At most eight uses, ascending.
    """
    chosen = sorted(of_use, key=lambda use: (-worth[use], use))[: min(count, MAX_TABLE_USES)]
    while (use := _best_addition(rows, of_use, chosen)) is not None:
        chosen.append(use)
        if len(chosen) <= MAX_TABLE_USES:
            continue
        # One use is removed: that of least worth among the uses without which the chosen ones distinguish known cycles equally
        # well. If there is no such use, the last addition is undone, and the choice ends.
        unexplained = unexplained_cycles(rows, of_use, chosen)
        for other in sorted(chosen[:-1], key=lambda bit: (worth[bit], -bit)):
            remaining = [bit for bit in chosen if bit != other]
            if unexplained_cycles(rows, of_use, remaining) <= unexplained:
                chosen = remaining
                break
        else:
            chosen.pop()
            break
    return sorted(chosen)


def unexplained_cycles(rows: Mapping[int, int], of_use: Mapping[int, int], chosen: Sequence[int]) -> int:
    """The differences in cycles that the chosen uses do not explain, as a number of cycles.

    Known patterns that agree in the chosen uses form groups. The result is the sum, over all groups, of the difference between
    the largest and the smallest cycles of a group.
    """
    mask = sum(of_use[use] for use in chosen)
    alike: dict[int, list[int]] = {}
    for pattern, cycles in rows.items():
        alike.setdefault(pattern & mask, []).append(cycles)
    return sum(max(cycles) - min(cycles) for cycles in alike.values())


def _best_addition(rows: Mapping[int, int], of_use: Mapping[int, int], chosen: Sequence[int]) -> int | None:
    """The use whose addition to the chosen ones reduces :func:`unexplained_cycles` most; None if no use reduces it."""
    before = unexplained_cycles(rows, of_use, chosen)
    others = [use for use in of_use if use not in chosen] if before else []
    after, best = min(((unexplained_cycles(rows, of_use, [*chosen, use]), use) for use in others), default=(before, -1))
    return best if after < before else None


def without_idle(
    uses: tuple[int, ...], cycles: Array, is_known: NDArray[np.bool_]
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Removes the uses that have almost no effect from a step's table.

    Such a use changes cycles by at most the fraction :data:`IDLE` in all rows, and not at all between two rows that are both
    known. These small differences are errors of the prediction, which an optimizer would exploit.

    Parameters
    ----------
    uses
        The distinguished uses.
    cycles, is_known
        The cycles of each of the ``2 ** len(uses)`` rows, and whether they come from the latency table. Bit ``i`` of a row's
        number is set if ``uses[i]`` is served from fast memory.

    Returns
    -------
    tuple
        The remaining uses, and the cycles of their rows.
    """
    while uses:
        shape = (2,) * len(uses)
        # The last axis belongs to the first use, because bit 0 of a row's number varies fastest.
        values, known = cycles.reshape(shape), is_known.reshape(shape)
        effects = []
        for bit in range(len(uses)):
            (slow, fast), (slow_known, fast_known) = (np.moveaxis(table, -1 - bit, 0) for table in (values, known))
            change = np.abs(fast - slow) / np.maximum(np.minimum(slow, fast), 1)
            effects.append(float(np.where(slow_known & fast_known & (slow != fast), np.inf, change).max()))
        bit = int(np.argmin(effects))
        if effects[bit] > IDLE:
            break
        (slow, fast), (slow_known, fast_known) = (np.moveaxis(table, -1 - bit, 0) for table in (values, known))
        cycles = np.where(fast_known & ~slow_known, fast, slow).ravel()
        is_known = (slow_known | fast_known).ravel()
        uses = uses[:bit] + uses[bit + 1 :]
    return uses, tuple(cycles.tolist())


class StepCosts(NamedTuple):
    """Cycles of one run of each of some steps; entry ``i`` of all arrays is for step ``names[i]``."""

    names: tuple[str, ...]
    """Names of the steps."""
    weight: NDArray[np.int64]
    """Number of runs of each step."""
    cycles: Array
    """Known or predicted cycles of each step."""
    low: Array
    """Lower ends of the intervals of the predictions; equal to ``cycles`` if these are known."""
    high: Array
    """Upper ends of the intervals of the predictions; equal to ``cycles`` if these are known."""
    is_known: NDArray[np.bool_]
    """Whether the latency table has the pattern of each step."""

    @property
    def total(self) -> float:
        """Cycles of all runs of all steps."""
        return float(self.weight @ self.cycles)

    @property
    def unsure(self) -> Array:
        """Cycles by which all runs of each step together may differ from the prediction: half of the interval's width."""
        return self.weight * (self.high - self.low) / 2

    @property
    def deviation(self) -> float:
        """Estimated error of ``total`` in cycles if the errors of steps are independent.

        It is the root of the sum of the squares of :attr:`unsure`.
        """
        return float(np.sqrt(np.square(self.unsure).sum()))


class SignatureCosts:
    """Costs of one program's steps, from a latency table and a predictor.

    Parameters
    ----------
    steps
        Signatures of the program's steps by name.
    table
        The latency table. Entries that are added to it later are used, too.
    predictor
        The predictor; None for that of TPU v4.
    caution
        The point of a prediction's interval that becomes the cycles of a problem: 0 for the expected cycles, 1 for the upper
        end, -1 for the lower end, and values between these for points between. An optimizer prefers choices whose cycles are
        predicted too low. Positive values compensate for this preference. Negative values lead to choices with uncertain
        predictions, which is useful for exploration.

    Raises
    ------
    UsageError
        The caution is out of range.
    """

    def __init__(
        self,
        steps: Mapping[str, StepSignature],
        table: LatencyTable,
        predictor: Predictor | None = None,
        *,
        caution: float = 0.0,
    ):
        if not -1 <= caution <= 1:
            raise UsageError(f"found caution {caution}, expected -1 to 1")
        self.steps = steps
        self.table = table
        self.predictor = predictor or shipped()
        self.caution = caution
        self._facts: dict[str, StepFacts] = {}
        self._tables: dict[Hashable, tuple[tuple[int, ...], tuple[float, ...]]] = {}

    def is_known(self, name: str) -> bool:
        """Whether the table has any entry for the step's signature."""
        return name in self.steps and self.steps[name].signature in self.table

    def predict(self, name: str, patterns: Sequence[int]) -> tuple[Prediction, NDArray[np.bool_]]:
        """The cycles of one run of a step for some patterns of its leaves.

        Parameters
        ----------
        name
            Name of the step.
        patterns
            The patterns.

        Returns
        -------
        tuple
            The cycles, exact for patterns in the table; and for each pattern, whether it is in the table.

        Raises
        ------
        KeyError
            The program has no step of this name, or the table has no entry for its signature (:meth:`is_known`).
        """
        step = self.steps[name]
        rows = self.table.rows(step.signature)
        if not rows:
            raise KeyError(name)
        is_known = np.array([pattern in rows for pattern in patterns], np.bool_)
        cycles = np.array([rows.get(pattern, 0) for pattern in patterns], np.float64)
        prediction = Prediction(cycles, cycles.copy(), cycles.copy())
        if not is_known.all():
            unseen = [pattern for pattern, seen in zip(patterns, is_known, strict=True) if not seen]
            facts = self._facts.get(step.signature)
            if facts is None:
                facts = self._facts[step.signature] = StepFacts(step)
            predicted = self.predictor.predict(facts, Known.of(rows, len(step.leaves)), as_bits(unseen, len(step.leaves)))
            for column, predicted_column in zip(prediction, predicted, strict=True):
                column[~is_known] = predicted_column
        return prediction, is_known

    def assignment(self, patterns: Mapping[str, int]) -> StepCosts:
        """The cycles of steps with these patterns, which are given by the names of the steps. Steps that are not in the
        program, or whose signatures have no entry in the table, are omitted."""
        names_of: dict[str, dict[int, list[str]]] = {}
        for name, pattern in patterns.items():
            if self.is_known(name):
                names_of.setdefault(self.steps[name].signature, {}).setdefault(pattern, []).append(name)
        rows: dict[str, tuple[float, float, float, bool]] = {}
        for names_by_pattern in names_of.values():
            name = next(iter(names_by_pattern.values()))[0]
            predicted, is_known = self.predict(name, list(names_by_pattern))
            for at, step_names in enumerate(names_by_pattern.values()):
                row = (float(predicted.cycles[at]), float(predicted.low[at]), float(predicted.high[at]), bool(is_known[at]))
                rows |= dict.fromkeys(step_names, row)
        names = tuple(name for name in patterns if name in rows)
        columns = np.array([rows[name] for name in names], np.float64).reshape(-1, 4)
        return StepCosts(
            names,
            np.array([self.steps[name].weight for name in names], np.int64),
            columns[:, 0],
            columns[:, 1],
            columns[:, 2],
            columns[:, 3].astype(np.bool_),
        )

    def of_fast_uses(self, steps: Sequence[ProgramStep], fast: Sequence[bool]) -> StepCosts:
        """The cycles of a plan for the program with these steps.

        ``fast`` says for every use of the program, in the order of the steps, whether it is served from fast memory. Steps are
        omitted as in :meth:`assignment`.
        """
        patterns, start = {}, 0
        for step in steps:
            end = start + len(step.uses)
            if step.name in self.steps:
                patterns[step.name] = self.steps[step.name].pattern(fast[start:end])
            start = end
        return self.assignment(patterns)

    def step_table(self, step: ProgramStep, target: Target) -> Table | None:
        """The latency of one run of a step, in ps, for each subset of at most eight of its uses.

        It is None if the latency table has no entry for the step's signature.

        Raises
        ------
        InputError
            The signatures are those of another program: the step has other uses, or runs another number of times.
        """
        if not self.is_known(step.name):
            return None
        step_signature = self.steps[step.name]
        of_use = step_signature.used_leaves()
        if any(use >= len(step.uses) for use in of_use) or step_signature.weight != step.weight:
            raise InputError("found a signature of another step, expected those of this program", place=f"step {step.name}")
        rows = self.table.rows(step_signature.signature)
        # Steps with the same signature usually have the same table.
        key = step_signature.signature, tuple(leaf.use for leaf in step_signature.leaves), frozenset(rows.items())
        if key not in self._tables:
            self._tables[key] = self._cycles_of(step.name, of_use)
        uses, cycles = self._tables[key]
        return Table(uses, tuple([target.cycles_ps(max(0, round(value))) for value in cycles]))

    def _cycles_of(self, name: str, of_use: Mapping[int, int]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """The distinguished uses of a step, and its cycles for each subset of them."""
        uses = self._distinguished_uses(name, of_use)
        leaves = [of_use[use] for use in uses]
        patterns = [sum(bits for bit, bits in enumerate(leaves) if mask >> bit & 1) for mask in range(1 << len(uses))]
        others = self._other_leaves(self.steps[name], sum(leaves), patterns)
        prediction, is_known = self.predict(name, [pattern | other for pattern, other in zip(patterns, others, strict=True)])
        end = prediction.high if self.caution > 0 else prediction.low
        return without_idle(tuple(uses), prediction.cycles + abs(self.caution) * (end - prediction.cycles), is_known)

    def _distinguished_uses(self, name: str, of_use: Mapping[int, int]) -> list[int]:
        """The distinguished uses of a step, ascending."""
        rows = self.table.rows(self.steps[name].signature)
        large = significant(self.steps[name])
        # Worth is computed only if it matters, since predictions take time.
        crowded = len(large) > MAX_TABLE_USES or unexplained_cycles(rows, of_use, sorted(large)) > 0
        worth = self._worth(name, of_use, rows) if crowded else dict.fromkeys(of_use, 0.0)
        return choose(of_use, rows, {use: gain + (use in large) for use, gain in worth.items()}, len(large))

    def _worth(self, name: str, of_use: Mapping[int, int], rows: Mapping[int, int]) -> dict[int, float]:
        """For each use, the largest change of the logarithm of predicted cycles if only this use changes memory.

        The change is computed at up to six known patterns.
        """
        bases = sorted(rows)
        bases = [bases[at] for at in sorted({round(place) for place in np.linspace(0, len(bases) - 1, 6)})]
        patterns = [pattern for base in bases for pattern in (base, *(base ^ leaves for leaves in of_use.values()))]
        logs = np.log(np.maximum(self.predict(name, patterns)[0].cycles, 1)).reshape(len(bases), -1)
        change = np.abs(logs[:, 1:] - logs[:, :1]).max(axis=0)
        return dict(zip(of_use, change.tolist(), strict=True))

    def _other_leaves(self, step_signature: StepSignature, chosen: int, patterns: list[int]) -> list[int]:
        """For each of ``patterns``, the leaves of uses that are not distinguished and that count as being in fast memory.

        These leaves are in fast memory in the nearest known pattern. The *nearest* pattern is the one in which the fewest bytes
        of leaves of distinguished uses are in another memory. ``chosen`` is the pattern of the leaves of the distinguished
        uses.
        """
        known_patterns = sorted(self.table.rows(step_signature.signature))
        if not any(pattern & ~chosen for pattern in known_patterns):
            return [0] * len(patterns)
        moved = np.array([leaf.moved for leaf in step_signature.leaves], np.float64) + 1
        is_chosen = as_bits([chosen], len(step_signature.leaves))[0]
        differs = _distance(
            as_bits(patterns, len(is_chosen)), as_bits(known_patterns, len(is_chosen)), np.where(is_chosen, moved, 0)
        )
        return [known_patterns[column] & ~chosen for column in differs.argmin(axis=1)]


def _distance(one: Bits, other: Bits, weight: Array) -> Array:
    """For each row of ``one`` and each row of ``other``, the sum of the weights of the columns in which the two rows differ."""
    distance: Array = (one[:, None, :] != other[None, :, :]) @ weight
    return distance
