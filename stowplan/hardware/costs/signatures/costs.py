"""The cost model ``signatures``: entries of a latency table exactly, a prediction with an interval for all other patterns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError, UsageError
from stowplan.hardware.costs.signatures.features import Bits, Known, StepFacts, as_bits
from stowplan.hardware.costs.signatures.instruction import Assignment, StepSignature
from stowplan.hardware.costs.signatures.predictor import Prediction, Predictor, shipped
from stowplan.hardware.costs.signatures.table import LatencyTable
from stowplan.hardware.costs.signatures.uses import choose, lost, significant, without_idle
from stowplan.hardware.program import ProgramStep
from stowplan.hardware.targets import Target
from stowplan.models.memory_mapping.problem import MAX_TABLE_USES, Table

Array = NDArray[np.float64]


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
        The one that comes with the package where None.
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
        found = Prediction(cycles, cycles.copy(), cycles.copy())
        if not is_known.all():
            unseen = [pattern for pattern, seen in zip(patterns, is_known, strict=True) if not seen]
            facts = self._facts.get(step.signature)
            if facts is None:
                facts = self._facts[step.signature] = StepFacts(step)
            predicted = self.predictor.predict(facts, Known.of(rows, len(step.leaves)), as_bits(unseen, len(step.leaves)))
            for whole, part in zip(found, predicted, strict=True):
                whole[~is_known] = part
        return found, is_known

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

    def of_compiled(self, assignment: Assignment) -> StepCosts:
        """Cycles that the model gives the steps of a compiled module, of those that have an estimate there."""
        return self.assignment({name: each.pattern for name, each in assignment.steps.items() if each.cycles is not None})

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
        return Table(uses, tuple([target.cycles_ps(max(0, round(each))) for each in cycles]))

    def _cycles_of(self, name: str, of_use: Mapping[int, int]) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Uses that a step's table tells apart, and its cycles for each subset of them."""
        uses = self._chosen(name, of_use)
        leaves = [of_use[use] for use in uses]
        patterns = [sum(part for bit, part in enumerate(leaves) if mask >> bit & 1) for mask in range(1 << len(uses))]
        rest = self._rest(self.steps[name], sum(leaves), patterns)
        found, is_known = self.predict(name, [pattern | more for pattern, more in zip(patterns, rest, strict=True)])
        end = found.high if self.caution > 0 else found.low
        return without_idle(tuple(uses), found.cycles + abs(self.caution) * (end - found.cycles), is_known)

    def _chosen(self, name: str, of_use: Mapping[int, int]) -> list[int]:
        """Uses that the step's table tells apart, ascending."""
        rows = self.table.rows(self.steps[name].signature)
        large = significant(self.steps[name])
        # Worth is asked for where it decides: predictions take time.
        crowded = len(large) > MAX_TABLE_USES or lost(rows, of_use, sorted(large)) > 0
        worth = self._worth(name, of_use, rows) if crowded else dict.fromkeys(of_use, 0.0)
        return choose(of_use, rows, {use: each + (use in large) for use, each in worth.items()}, len(large))

    def _worth(self, name: str, of_use: Mapping[int, int], rows: Mapping[int, int]) -> dict[int, float]:
        """Largest relative change of the cycles when a use alone changes memory, at some of the measured patterns."""
        bases = sorted(rows)
        bases = [bases[at] for at in sorted({round(each) for each in np.linspace(0, len(bases) - 1, 6)})]
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
        return [known[each] & ~chosen for each in differs.argmin(axis=1)]


def _distance(one: Bits, other: Bits, weight: Array) -> Array:
    found: Array = (one[:, None, :] != other[None, :, :]) @ weight
    return found
