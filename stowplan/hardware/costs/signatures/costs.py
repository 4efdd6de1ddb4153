"""The cost model ``signatures``: entries of a latency table exactly, a prediction with an interval for all other patterns.

A step's own table has a row for each subset of the uses that it tells apart, so that they are few.
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
        for other in sorted(chosen[:-1], key=lambda bit: (worth[bit], -bit)):
            kept = [bit for bit in chosen if bit != other]
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
    """Cycles of the steps of one assignment, runs not counted: entry i is for ``names[i]``."""

    names: tuple[str, ...]
    weight: NDArray[np.int64]
    """How often each step runs."""
    cycles: Array
    low: Array
    high: Array
    """The interval of a prediction; the cycles themselves where they are known."""
    is_known: NDArray[np.bool_]
    """Whether the latency table has the step's pattern."""

    @property
    def total(self) -> float:
        """Cycles of all steps, runs counted."""
        return float(self.weight @ self.cycles)

    @property
    def unsure(self) -> Array:
        """Cycles by which each step may differ from its prediction, runs counted: where to explore."""
        return self.weight * (self.high - self.low) / 2

    @property
    def deviation(self) -> float:
        """How far the total may be off if errors of steps are independent: root of the sum of squares of :attr:`unsure`."""
        return float(np.sqrt(np.square(self.unsure).sum()))


class SignatureCosts:
    """Costs of one program's steps, from a latency table and a predictor.

    Parameters
    ----------
    steps
        Signature of each of the program's steps, by name.
    table
        Looked at when costs are asked for, so that one object serves a table that grows.
    predictor
        The one that comes with the package for TPU v4 where None.
    caution
        Which point of its interval stands for a prediction in a problem: 0 what is expected, 1 the upper end, -1 the lower one.
        An optimizer picks what is predicted too low; some caution makes up for that, and less than none explores.
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
        """Cycles of one step for some patterns of its leaves, and which of them are in the table.

        Raises
        ------
        KeyError
            The table has no entry for the step's signature (:meth:`is_known`).
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
            for whole, part in zip(prediction, predicted, strict=True):
                whole[~is_known] = part
        return prediction, is_known

    def assignment(self, patterns: Mapping[str, int]) -> StepCosts:
        """Cycles of the steps of an assignment, each with its pattern; steps that the table knows nothing of are left out."""
        asked: dict[str, dict[int, list[str]]] = {}
        for name, pattern in patterns.items():
            if self.is_known(name):
                asked.setdefault(self.steps[name].signature, {}).setdefault(pattern, []).append(name)
        rows: dict[str, tuple[float, float, float, bool]] = {}
        for named in asked.values():
            name = next(iter(named.values()))[0]
            predicted, is_known = self.predict(name, list(named))
            for at, same in enumerate(named.values()):
                row = (float(predicted.cycles[at]), float(predicted.low[at]), float(predicted.high[at]), bool(is_known[at]))
                rows |= dict.fromkeys(same, row)
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
        """Cycles for a plan: ``fast`` says of each use of the program, in order, whether it is served from fast memory."""
        patterns, start = {}, 0
        for step in steps:
            end = start + len(step.uses)
            if step.name in self.steps:
                patterns[step.name] = self.steps[step.name].pattern(fast[start:end])
            start = end
        return self.assignment(patterns)

    def step_table(self, step: ProgramStep, target: Target) -> Table | None:
        """Latency of one run for each subset of at most eight of the step's uses; None where the table knows nothing of it.

        Raises
        ------
        InputError
            The signatures are of another program: the step has other uses.
        """
        if not self.is_known(step.name):
            return None
        signed = self.steps[step.name]
        of_use = signed.used_leaves()
        if any(use >= len(step.uses) for use in of_use) or signed.weight != step.weight:
            raise InputError("found a signature of another step, expected those of this program", place=f"step {step.name}")
        rows = self.table.rows(signed.signature)
        # Steps with one signature mostly have one table.
        key = signed.signature, tuple(leaf.use for leaf in signed.leaves), frozenset(rows.items())
        if key not in self._tables:
            self._tables[key] = self._cycles_of(step.name, of_use)
        uses, cycles = self._tables[key]
        return Table(uses, tuple([target.cycles_ps(max(0, round(value))) for value in cycles]))

    def _cycles_of(self, name: str, of_use: Mapping[int, int]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Uses that a step's table tells apart, and its cycles for each subset of them."""
        uses = self._chosen(name, of_use)
        leaves = [of_use[use] for use in uses]
        patterns = [sum(part for bit, part in enumerate(leaves) if mask >> bit & 1) for mask in range(1 << len(uses))]
        rest = self._rest(self.steps[name], sum(leaves), patterns)
        prediction, is_known = self.predict(name, [pattern | more for pattern, more in zip(patterns, rest, strict=True)])
        end = prediction.high if self.caution > 0 else prediction.low
        return without_idle(tuple(uses), prediction.cycles + abs(self.caution) * (end - prediction.cycles), is_known)

    def _chosen(self, name: str, of_use: Mapping[int, int]) -> list[int]:
        """Uses that the step's table tells apart, ascending."""
        rows = self.table.rows(self.steps[name].signature)
        large = significant(self.steps[name])
        # Worth is asked for where it decides: predictions take time.
        crowded = len(large) > MAX_TABLE_USES or lost(rows, of_use, sorted(large)) > 0
        worth = self._worth(name, of_use, rows) if crowded else dict.fromkeys(of_use, 0.0)
        return choose(of_use, rows, {use: gain + (use in large) for use, gain in worth.items()}, len(large))

    def _worth(self, name: str, of_use: Mapping[int, int], rows: Mapping[int, int]) -> dict[int, float]:
        """Largest relative change of the cycles when a use alone changes memory, at some of the measured patterns."""
        bases = sorted(rows)
        bases = [bases[at] for at in sorted({round(place) for place in np.linspace(0, len(bases) - 1, 6)})]
        asked = [pattern for base in bases for pattern in (base, *(base ^ leaves for leaves in of_use.values()))]
        logs = np.log(np.maximum(self.predict(name, asked)[0].cycles, 1)).reshape(len(bases), -1)
        change = np.abs(logs[:, 1:] - logs[:, :1]).max(axis=0)
        return dict(zip(of_use, change.tolist(), strict=True))

    def _rest(self, signed: StepSignature, chosen: int, patterns: list[int]) -> list[int]:
        """Where arrays stand that the step's table does not tell apart: as in the measured pattern that is nearest else."""
        known = sorted(self.table.rows(signed.signature))
        if not any(pattern & ~chosen for pattern in known):
            return [0] * len(patterns)
        moved = np.array([leaf.moved for leaf in signed.leaves], np.float64) + 1
        told = as_bits([chosen], len(signed.leaves))[0]
        differs = _distance(as_bits(patterns, len(told)), as_bits(known, len(told)), np.where(told, moved, 0))
        return [known[column] & ~chosen for column in differs.argmin(axis=1)]


def _distance(one: Bits, other: Bits, weight: Array) -> Array:
    distance: Array = (one[:, None, :] != other[None, :, :]) @ weight
    return distance
