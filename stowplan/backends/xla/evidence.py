"""What all compiles of a program have shown: the latency table they fill, and what moving a tensor would change by it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from stowplan.backends.xla.score import Judge, Score
from stowplan.backends.xla.steer import Steer, values_of
from stowplan.backends.xla.store import Compiled
from stowplan.frontends.hlo import program_from_module, read_module
from stowplan.frontends.hlo.signatures import read_assignment, sign_steps
from stowplan.hardware.costs.signatures import NO_USE, Assignment, LatencyTable, StepSignature
from stowplan.hardware.targets import Target


class Trial(NamedTuple):
    """A steer, and what the compiler made of it."""

    steer: Steer
    compiled: Compiled
    assignment: Assignment
    score: Score


class Estimated(NamedTuple):
    """Cycles of a step for a pattern, and how far off they may be (one standard deviation; 0 where measured)."""

    cycles: float
    deviation: float = 0.0


#: Cycles of a step whose leaves stand as a pattern says.
Estimator = Callable[[StepSignature, int], Estimated]


class Move(NamedTuple):
    """A tensor taken to fast memory for all its uses, or out of it, and what that would change."""

    tensor: int
    to_fast: bool
    cycles: float
    """Change of the program's cycles, all runs; negative is a gain."""
    deviation: float
    size: int


class Evidence:
    """Trials of one program, in the order they were made.

    Parameters
    ----------
    compiled
        Any result of the program: it names the module before memory-space assignment.
    target
        What it is compiled for.
    table
        Entries known from other programs; this program's are added to a copy.
    """

    def __init__(self, compiled: Compiled, target: Target, table: LatencyTable | None = None):
        module = read_module(compiled.program_path)
        self.program = program_from_module(module)
        self.signatures = sign_steps(module, self.program)
        self.judge = Judge(self.program, target)
        self.values = values_of(self.program)
        """XLA's names of the values of each tensor."""
        self.table = table.copy() if table is not None else LatencyTable()
        self.trials: list[Trial] = []
        self._leaves_of: dict[int, list[tuple[str, int]]] = {}
        for step in self.program.steps:
            signature = self.signatures.get(step.name)
            if signature is not None:
                for use, mask in signature.used_leaves().items():
                    self._leaves_of.setdefault(step.uses[use].tensor, []).append((step.name, mask))

    def add(self, steer: Steer, compiled: Compiled) -> Trial:
        """Read a result and take it into the table."""
        trial = Trial(steer, compiled, read_assignment(compiled.module_path, self.signatures), self.judge.score(compiled))
        self.table.add(trial.assignment, self.signatures)
        self.trials.append(trial)
        return trial

    @property
    def incumbent(self) -> Trial:
        """The best trial, the first of equals."""
        return min(self.trials, key=lambda trial: trial.score.total)

    def fast_tensors(self, assignment: Assignment) -> set[int]:
        """Tensors that some step reads or writes in fast memory."""
        return {
            tensor
            for tensor, leaves in self._leaves_of.items()
            if any(self._pattern(assignment, step) & mask for step, mask in leaves)
        }

    def moves(self, trial: Trial, estimate: Estimator) -> list[Move]:
        """What taking each tensor out of fast memory, or into it, would change; best first.

        A tensor that stands in fast memory for some of its uses only can be moved both ways.
        """
        found = []
        for tensor, leaves in self._leaves_of.items():
            masks: dict[str, int] = {}
            for step, mask in leaves:
                masks[step] = masks.get(step, 0) | mask
            for to_fast in (False, True):
                change = variance = 0.0
                moved = False
                for step, mask in masks.items():
                    placement = trial.assignment.steps.get(step)
                    if placement is None or placement.cycles is None:
                        continue
                    pattern = placement.pattern | mask if to_fast else placement.pattern & ~mask
                    if pattern == placement.pattern:
                        continue
                    moved = True
                    signature = self.signatures[step]
                    cycles, deviation = estimate(signature, pattern)
                    change += signature.weight * (cycles - placement.cycles)
                    variance += (signature.weight * deviation) ** 2
                if moved:
                    size = self.program.tensors[tensor].size
                    found.append(Move(tensor, to_fast, change, variance**0.5, size))
        return sorted(found, key=lambda move: move.cycles)

    def harmful(self, planned: Assignment, all_slow: Assignment) -> dict[int, float]:
        """Tensors that a plan would do better without: cycles that their places in fast memory cost, all runs.

        The difference of a step between the two compiles is divided among the tensors that it finds in fast memory by the
        bytes it moves.
        """
        effect: dict[int, float] = {}
        for step in self.program.steps:
            signature = self.signatures.get(step.name)
            now, slow = planned.steps.get(step.name), all_slow.steps.get(step.name)
            if signature is None or now is None or slow is None or now.cycles is None or slow.cycles is None:
                continue
            fast = [
                (step.uses[leaf.use].tensor, leaf.moved)
                for bit, leaf in enumerate(signature.leaves)
                if leaf.use != NO_USE and now.pattern >> bit & 1
            ]
            total = sum(size for _, size in fast)
            for tensor, size in fast:
                share = size / total if total else 1 / len(fast)
                effect[tensor] = effect.get(tensor, 0.0) + step.weight * (now.cycles - slow.cycles) * share
        return {tensor: cycles for tensor, cycles in sorted(effect.items()) if cycles > 0}

    def names(self, tensors: Iterable[int]) -> frozenset[str]:
        """XLA's names of all values of some tensors."""
        return frozenset(name for tensor in tensors for name in self.values[tensor])

    @staticmethod
    def _pattern(assignment: Assignment, step: str) -> int:
        placement = assignment.steps.get(step)
        return 0 if placement is None else placement.pattern


def nearest(table: LatencyTable) -> Estimator:
    """Measured cycles; for other patterns those of the nearest one measured, by the bytes that stand elsewhere.

    The deviation is half the range of what was measured.
    """

    def estimate(step: StepSignature, pattern: int) -> Estimated:
        rows = table.rows(step.signature)
        if pattern in rows:
            return Estimated(rows[pattern])
        if not rows:
            return Estimated(0.0)
        sizes = [leaf.moved + 1 for leaf in step.leaves]

        def distance(other: int) -> int:
            different = pattern ^ other
            return sum(size for bit, size in enumerate(sizes) if different >> bit & 1)

        best = min(sorted(rows), key=distance)
        return Estimated(rows[best], (max(rows.values()) - min(rows.values())) / 2)

    return estimate
