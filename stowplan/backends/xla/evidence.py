"""The results of all compilations of one program: cycles of its steps, and predictions of the effect of moving a tensor.

A *step* is an instruction of the scheduled program. A *setting* is a choice of compiler options
(:class:`~stowplan.backends.xla.knobs.Knobs`). A *preview* is a compilation that ends right after XLA's memory-space assignment.
A step's *pattern* says which of its arrays (*leaves*) are in fast memory, one bit for each. Its *signature* describes
everything else on which its time depends, such as its operation and its shapes. A *latency table* has the cycles of steps by
signature and pattern. A *stall* is time that the program waits for an asynchronous copy. The *default* is the compilation
without any of the options. The *roofline model* predicts the cycles of a step from its floating-point operations and its bytes.
"""

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

#: A gain below this share of a program's cycles is not worth a compilation.
_MIN_SHARE = 0.002

#: If a program uses more than this share of fast memory, fast memory counts as full, so that other settings may gain something.
_FULL_SHARE = 0.875


class Trial(NamedTuple):
    """A setting with its compilation or preview."""

    knobs: Knobs
    """The setting."""
    compiled: Compiled
    """The files of its compilation or preview."""
    assignment: Assignment
    """The memories and cycles of steps; cycles of copies and collectives are computed from their bytes, as in the score."""
    score: Score
    """Cycles of the module: XLA's estimates, or predictions for a preview."""
    has_fast_memory: bool = True
    """Whether any value is in fast memory."""
    deviation: float | None = None
    """For a preview, whose cycles are predicted: the uncertainty of the prediction, in cycles. None for a compilation."""


class Move(NamedTuple):
    """Moving a tensor to fast memory for all of its uses, or out of it, and the predicted effect."""

    tensor: int
    """Index of the tensor."""
    to_fast: bool
    """Whether it moves to fast memory."""
    cycles: float
    """Change of the program's cycles over all runs of its steps; negative is a gain. Effects on other tensors, which may lose
    their place, are not included."""
    deviation: float
    """Uncertainty of the change, in cycles; 0 if every pattern was compiled before."""


class Evidence:
    """The trials of one program, in the order in which they were made, and predictions from their cycles.

    Parameters
    ----------
    compiled
        Any result of the program; it has the module before memory-space assignment.
    target
        The machine for which it is compiled.
    table
        Cycles of steps of other programs, None for none. The cycles of this program are added to a copy of the table.
    predictor
        Predicts the cycles of patterns that no compilation has shown; by default this package's model for the chip.
    pace
        Ratio of XLA's cycles to the cycles of the roofline model. As long as nothing is compiled, previews use it for steps of
        which nothing else is known.

    Raises
    ------
    InputError
        The program cannot be read.
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
        """Contents of the file from which the program was read."""
        module = read_module(compiled.program_path)
        self.program = scored_program(module)
        self.signatures = sign_steps(module, self.program)
        self.scorer = Scorer(self.program, target)
        self.values = values_of(self.program)
        """[tensors] XLA's names of the values in each tensor."""
        self.table = table.copy() if table is not None else LatencyTable()
        self.trials: list[Trial] = []
        self._pace = pace
        self._known_cycles: dict[str, int] = {}
        """From the name of a step to its cycles in the last compilation that had it."""
        self.all_slow: Trial | None = None
        """The first trial in which all tensors are in slow memory; None if there is none."""
        self.parameters = _parameters(module, self.program)
        """Tensors that are inputs of the program; constants are not among them."""
        self.deadline = Deadline()
        """When the strategies of :mod:`stowplan.backends.xla.proposals` must stop searching for the next settings."""
        self.costs = SignatureCosts(self.signatures, self.table, predictor or shipped(target.predictor))
        self._masks_of: dict[str, dict[int, int]] = {}
        """From a step and a tensor to the bits of the tensor's leaves in the step's pattern of memories."""
        for step in self.program.steps:
            signature = self.signatures.get(step.name)
            if signature is not None:
                masks = self._masks_of.setdefault(step.name, {})
                for use, mask in signature.used_leaves().items():
                    masks[step.uses[use].tensor] = masks.get(step.uses[use].tensor, 0) | mask

    def add(self, knobs: Knobs, compiled: Compiled) -> Trial:
        """Read a compilation, and add its cycles to the table; ``knobs`` is its setting.

        Raises InputError if it cannot be read, has no estimates of cycles, or belongs to another program, and VerificationError
        if XLA's plan in it cannot be made valid.
        """
        module = self.scorer.read(compiled)
        trial = Trial(knobs, compiled, module.assignment(self.signatures), self.scorer.score(module), module.has_fast_memory)
        self.table.add(trial.assignment, self.signatures)
        self._known_cycles.update(module.cycles)
        self.trials.append(trial)
        if self.all_slow is None and not self.fast_tensors(trial.assignment):
            self.all_slow = trial
        return trial

    def preview(self, knobs: Knobs, compiled: Compiled) -> Trial:
        """Read a preview; ``knobs`` is its setting.

        The cycles of its steps are those of the latency table, or are predicted if the table does not have them. Raises
        InputError if the preview cannot be read, and VerificationError if XLA's plan in it cannot be made valid.
        """
        step_cycles = self._known_cycles
        if not self.trials:
            roofline = self.scorer.roofline_cycles(compiled)
            step_cycles = {name: round(self._pace * cycles) for name, cycles in roofline.items()}
        module = PreviewedModule(compiled, self.scorer.target, self.costs, step_cycles)
        assignment = module.assignment(self.signatures)
        return Trial(knobs, compiled, assignment, self.scorer.score(module), module.has_fast_memory, module.deviation)

    @cached_property
    def pace(self) -> float:
        """Ratio of the first compilation's cycles to the cycles of the roofline model; there must be a compilation."""
        roofline = self.scorer.roofline_cycles(self.trials[0].compiled)
        measured = sum(step.weight * self._known_cycles.get(step.name, 0) for step in self.program.steps)
        return measured / max(1.0, sum(step.weight * roofline[step.name] for step in self.program.steps))

    @property
    def incumbent(self) -> Trial:
        """The best compilation from which other settings can start, the first of equals; there must be one.

        The compilation without memory-space assignment counts only if there is no other one, because an order of values has no
        effect on it.
        """
        ordered = [trial for trial in self.trials if trial.knobs != ALL_SLOW]
        return min(ordered or self.trials, key=lambda trial: trial.score.total)

    @property
    def capacity(self) -> int:
        """Bytes of fast memory that the memory-space assignment may use."""
        return int(self.scorer.target.fast_memory.capacity)

    def features(self, trial: Trial) -> tuple[float, ...]:
        """Returns the numbers that describe the program by a trial, each roughly between 0 and 1.

        - its size: cycles, and steps
        - shares of its time: stalls, copies, and matrix products
        - the share of its traffic that fast memory serves
        - the share of fast memory that is in use
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
        """Why settings have nothing to gain here, judging by the incumbent; empty if they may gain something."""
        trial = self.incumbent
        total = max(trial.score.total, 1)
        spare, stalls = 1 - trial.score.fast_bytes / self.capacity, trial.score.stall_cycles / total
        # Inputs have to be read from slow memory once in any case, so moving them is no gain.
        moves = (move for move in self.moves(trial) if move.tensor not in self.parameters)
        gains = sum(max(0.0, -move.cycles) for move in moves) / total
        if spare < 1 - _FULL_SHARE or stalls > _MIN_SHARE or gains > _MIN_SHARE:
            return ""
        return f"{spare:.0%} of the fast memory is free, {stalls:.2%} of the time is waits, other places would save {gains:.2%}"

    def fast_tensors(self, assignment: Assignment) -> set[int]:
        """Returns the tensors that some step reads or writes in fast memory."""
        return {
            tensor
            for name, masks in self._masks_of.items()
            if name in assignment.steps
            for tensor, mask in masks.items()
            if assignment.steps[name].pattern & mask
        }

    def moves(self, trial: Trial) -> list[Move]:
        """Predicts the effect of moving each tensor out of fast memory or into it; the best moves come first.

        A tensor that is in fast memory for only some of its uses can be moved both ways. Whether there is room for it is not
        considered; the compiler finds that out.
        """
        changes: dict[tuple[int, bool], tuple[float, float]] = {}
        for name, masks in self._masks_of.items():
            placement = trial.assignment.steps.get(name)
            if placement is None or placement.cycles is None or not self.costs.is_known(name):
                continue
            candidates = [
                (tensor, to_fast, pattern)
                for tensor, mask in masks.items()
                for to_fast, pattern in ((False, placement.pattern & ~mask), (True, placement.pattern | mask))
                if pattern != placement.pattern
            ]
            if not candidates:
                continue
            predicted, _ = self.costs.predict(name, [pattern for *_, pattern in candidates])
            weight = self.signatures[name].weight
            for at, (tensor, to_fast, _) in enumerate(candidates):
                cycles, variance = changes.get((tensor, to_fast), (0.0, 0.0))
                cycles += weight * (float(predicted.cycles[at]) - placement.cycles)
                variance += (weight * float(predicted.high[at] - predicted.low[at]) / 2) ** 2
                changes[tensor, to_fast] = cycles, variance
        moves = [
            Move(tensor, to_fast, cycles, math.sqrt(variance)) for (tensor, to_fast), (cycles, variance) in changes.items()
        ]
        return sorted(moves, key=lambda move: (move.cycles, move.tensor, move.to_fast))

    def waiting_cost(self, tensor: int) -> float:
        """Returns the cycles that it costs to keep a tensor in fast memory before its first use.

        Its bytes are then reserved from the start of the program to that use.

        The whole fast memory is taken to be worth the cycles that XLA's default saves compared with all tensors in slow memory.
        Each byte and each moment has an equal share of these cycles. The cost is 0 if no trial has all tensors in slow memory.
        """
        if self.all_slow is None:
            return 0.0
        worth = max(0, self.all_slow.score.total - self.trials[0].score.total)
        share = self.program.tensors[tensor].size / self.capacity
        return worth * self._first_uses.get(tensor, 0.0) * share

    @cached_property
    def _first_uses(self) -> dict[int, float]:
        """From a tensor to the moment of its first use, as a share of the default's cycles."""
        first_use, clock = dict[int, float](), 0.0
        default = self.trials[0].assignment.steps
        for step in self.program.steps:
            for use in step.uses:
                first_use.setdefault(use.tensor, clock)
            placement = default.get(step.name)
            clock += step.weight * (placement.cycles or 0) if placement is not None else 0
        return {tensor: moment / max(clock, 1.0) for tensor, moment in first_use.items()}

    def names(self, tensors: Iterable[int]) -> frozenset[str]:
        """XLA's names of all values in some tensors."""
        return frozenset(name for tensor in tensors for name in self.values[tensor])


def _parameters(module: HloModule, program: Program) -> set[int]:
    """Returns the tensors of the program's parameters."""
    names = (
        instruction.name + index_text(index)
        for instruction in module.entry.instructions
        if instruction.opcode == "parameter"
        for index, _ in instruction.shape.leaves
    )
    return {program.value_tensor[name] for name in names if name in program.value_tensor}
