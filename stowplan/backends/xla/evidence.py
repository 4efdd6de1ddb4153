"""What all compiles of a program have shown: the latency table they fill, and what moving a tensor would change by it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from stowplan.backends.xla.knobs import ALL_SLOW, Knobs, values_of
from stowplan.backends.xla.score import PreviewedModule, Score, Scorer, scored_program
from stowplan.backends.xla.store import Compiled
from stowplan.deadline import Deadline
from stowplan.frontends.hlo import HloModule, read_module
from stowplan.frontends.hlo.placed import sign_steps
from stowplan.frontends.hlo.shape import index_text
from stowplan.hardware.costs.signatures import Assignment, LatencyTable, Predictor, SignatureCosts, shipped
from stowplan.hardware.program import Program
from stowplan.hardware.targets import Target

#: What is less than this part of a program's time is not worth a compile.
_LITTLE = 0.002

#: A program that takes no more than this part of fast memory has room to spare.
_SPARE = 0.875


class Trial(NamedTuple):
    """A setting, and what the compiler made of it."""

    knobs: Knobs
    compiled: Compiled
    assignment: Assignment
    """Copies and collectives with cycles by their bytes, as they are scored."""
    score: Score
    has_fast_memory: bool = True
    deviation: float | None = None
    """Of a preview, whose cycles are predicted: how far off they may be. None where they are the compiler's own."""


class Move(NamedTuple):
    """A tensor taken to fast memory for all its uses, or out of it, and what that would change."""

    tensor: int
    to_fast: bool
    cycles: float
    """Change of the program's cycles, all runs; negative is a gain. That others lose their place by it is not in it."""
    deviation: float
    """How far off that may be; 0 where every pattern was measured."""


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
    predictor
        What predicts the cycles of patterns that no compile has shown; the package's for the chip where None.
    pace
        Cycles over those of the roofline, for steps of which nothing else is known.
    """

    def __init__(
        self,
        compiled: Compiled,
        target: Target,
        table: LatencyTable | None = None,
        predictor: Predictor | None = None,
        pace: float = 1.0,
    ):
        self.program_text = compiled.program_path.read_bytes()
        """Of the file that the program was read from."""
        module = read_module(compiled.program_path)
        self.program = scored_program(module)
        self.signatures = sign_steps(module, self.program)
        self.scorer = Scorer(self.program, target)
        self.values = values_of(self.program)
        """XLA's names of the values of each tensor."""
        self.table = table.copy() if table is not None else LatencyTable()
        self.trials: list[Trial] = []
        self._pace = pace
        self._known: dict[str, int] = {}
        """Cycles of steps by name, of the last compile that had them."""
        self.all_slow: Trial | None = None
        """The first trial with nothing in fast memory, where there is one."""
        self.parameters = _parameters(module, self.program)
        """Tensors that are given to the program; constants are not among them."""
        self.deadline = Deadline()
        """When to stop looking for what to try next."""
        self.costs = SignatureCosts(self.signatures, self.table, predictor or shipped(target.predictor))
        self._masks_of: dict[str, dict[int, int]] = {}
        """For each step the pattern of each tensor's leaves."""
        for step in self.program.steps:
            signature = self.signatures.get(step.name)
            if signature is not None:
                masks = self._masks_of.setdefault(step.name, {})
                for use, mask in signature.used_leaves().items():
                    masks[step.uses[use].tensor] = masks.get(step.uses[use].tensor, 0) | mask

    def add(self, knobs: Knobs, compiled: Compiled) -> Trial:
        """Read a result and take it into the table."""
        module = self.scorer.read(compiled)
        trial = Trial(knobs, compiled, module.assignment(self.signatures), self.scorer.score(module), module.has_fast_memory)
        self.table.add(trial.assignment, self.signatures)
        self._known.update(module.cycles)
        self.trials.append(trial)
        if self.all_slow is None and not self.fast_tensors(trial.assignment):
            self.all_slow = trial
        return trial

    def preview(self, knobs: Knobs, compiled: Compiled) -> Trial:
        """What is expected of a setting by its memory-space assignment: cycles as the table and its predictions have them."""
        known = self._known
        if not self.trials:
            roofline = self.scorer.roofline_cycles(compiled)
            known = {name: round(self._pace * cycles) for name, cycles in roofline.items()}
        module = PreviewedModule(compiled, self.scorer.target, self.costs, known)
        assignment = module.assignment(self.signatures)
        return Trial(knobs, compiled, assignment, self.scorer.score(module), module.has_fast_memory, module.deviation)

    @cached_property
    def pace(self) -> float:
        """Cycles of the first compile over those of the roofline."""
        roofline = self.scorer.roofline_cycles(self.trials[0].compiled)
        measured = sum(step.weight * self._known.get(step.name, 0) for step in self.program.steps)
        return measured / max(1.0, sum(step.weight * roofline[step.name] for step in self.program.steps))

    @property
    def incumbent(self) -> Trial:
        """The best trial that settings can start from, the first of equals: where the assignment is off, no order counts."""
        ordered = [trial for trial in self.trials if trial.knobs != ALL_SLOW]
        return min(ordered or self.trials, key=lambda trial: trial.score.total)

    @property
    def capacity(self) -> int:
        """Bytes of fast memory that the machine has."""
        return int(self.scorer.target.fast_memory.capacity)

    def features(self, trial: Trial) -> tuple[float, ...]:
        """What a trial shows of the program, each number about between 0 and 1.

        Size (cycles, steps), parts of the time (stalls, copies, matrix products), part of the traffic that is served from
        fast memory, and part of that memory which is taken.
        """
        placed, total = trial.assignment.steps, max(trial.score.total, 1)
        products = moved = fast = 0
        for name, signature in self.signatures.items():
            placement = placed.get(name)
            if placement is None:
                continue
            products += signature.weight * (placement.cycles or 0) * bool(signature.flops)
            for bit, leaf in enumerate(signature.leaves):
                moved += signature.weight * leaf.moved
                fast += signature.weight * leaf.moved * (placement.pattern >> bit & 1)
        return (
            math.log10(total) / 10,
            math.log10(1 + len(placed)) / 5,
            trial.score.stall_cycles / total,
            trial.score.careful_copy_cycles / total,
            products / total,
            fast / max(moved, 1),
            trial.score.fast_bytes / self.capacity,
        )

    def why_nothing(self) -> str:
        """Why settings have nothing to gain here, by the incumbent; empty where they may have."""
        trial = self.incumbent
        total = max(trial.score.total, 1)
        spare, stalls = 1 - trial.score.fast_bytes / self.capacity, trial.score.stall_cycles / total
        # What is given to the program comes from slow memory once, wherever it is read.
        moves = (move for move in self.moves(trial) if move.tensor not in self.parameters)
        gains = sum(max(0.0, -move.cycles) for move in moves) / total
        if spare < 1 - _SPARE or stalls > _LITTLE or gains > _LITTLE:
            return ""
        return f"{spare:.0%} of the fast memory is free, {stalls:.2%} of the time is waits, other places would save {gains:.2%}"

    def fast_tensors(self, assignment: Assignment) -> set[int]:
        """Tensors that some step reads or writes in fast memory."""
        return {
            tensor
            for name, masks in self._masks_of.items()
            if name in assignment.steps
            for tensor, mask in masks.items()
            if assignment.steps[name].pattern & mask
        }

    def moves(self, trial: Trial) -> list[Move]:
        """What taking each tensor out of fast memory, or into it, would change by the table and its predictions; best first.

        A tensor that stands in fast memory for some of its uses only can be moved both ways. Whether there is room for it is
        for the compiler to find out.
        """
        changes: dict[tuple[int, bool], tuple[float, float]] = {}
        for name, masks in self._masks_of.items():
            placement = trial.assignment.steps.get(name)
            if placement is None or placement.cycles is None or not self.costs.is_known(name):
                continue
            asked = [
                (tensor, to_fast, pattern)
                for tensor, mask in masks.items()
                for to_fast, pattern in ((False, placement.pattern & ~mask), (True, placement.pattern | mask))
                if pattern != placement.pattern
            ]
            if not asked:
                continue
            predicted, _ = self.costs.predict(name, [pattern for *_, pattern in asked])
            weight = self.signatures[name].weight
            for at, (tensor, to_fast, _) in enumerate(asked):
                cycles, variance = changes.get((tensor, to_fast), (0.0, 0.0))
                cycles += weight * (float(predicted.cycles[at]) - placement.cycles)
                variance += (weight * float(predicted.high[at] - predicted.low[at]) / 2) ** 2
                changes[tensor, to_fast] = cycles, variance
        moves = [
            Move(tensor, to_fast, cycles, math.sqrt(variance)) for (tensor, to_fast), (cycles, variance) in changes.items()
        ]
        return sorted(moves, key=lambda move: (move.cycles, move.tensor, move.to_fast))

    def waiting_cost(self, tensor: int) -> float:
        """Cycles that a tensor's place is worth on average from the program's start to its first use.

        All of fast memory for all of the time is worth what XLA's default saves against all in slow memory.
        """
        if self.all_slow is None:
            return 0.0
        worth = max(0, self.all_slow.score.total - self.trials[0].score.total)
        share = self.program.tensors[tensor].size / self.capacity
        return worth * self._first_uses.get(tensor, 0.0) * share

    @cached_property
    def _first_uses(self) -> dict[int, float]:
        """Moment at which each tensor is first used, as a share of the default's cycles."""
        first, now = dict[int, float](), 0.0
        default = self.trials[0].assignment.steps
        for step in self.program.steps:
            for use in step.uses:
                first.setdefault(use.tensor, now)
            placement = default.get(step.name)
            now += step.weight * (placement.cycles or 0) if placement is not None else 0
        return {tensor: moment / max(now, 1.0) for tensor, moment in first.items()}

    def names(self, tensors: Iterable[int]) -> frozenset[str]:
        """XLA's names of all values of some tensors."""
        return frozenset(name for tensor in tensors for name in self.values[tensor])


def _parameters(module: HloModule, program: Program) -> set[int]:
    names = (
        instruction.name + index_text(index)
        for instruction in module.entry.instructions
        if instruction.opcode == "parameter"
        for index, _ in instruction.shape.leaves
    )
    return {program.value_tensor[name] for name in names if name in program.value_tensor}
