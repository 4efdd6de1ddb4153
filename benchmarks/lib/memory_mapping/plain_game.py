"""The rules of MMapGame (Wang et al. 2023, section 4.2 and appendix A) as a plain reference.

``docs/reference/mmap-game.md`` states them. This file says them as clearly as it can; the compiled game is held against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from benchmarks.lib.memory_mapping.plain_channel import Channel, Window
from stowplan.learned_guidance.memory_mapping.game.game import Action, Game, Move, plan_of
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem


@dataclass(frozen=True, slots=True)
class Placement:
    """What Copy or NoCopy would occupy."""

    start: int
    end: int
    """Steps ``[start, end)`` that are newly occupied; none where the tensor already stays long enough."""
    offset: int
    window: Window | None
    """Slots of the copy; None for NoCopy."""


@dataclass(frozen=True, slots=True)
class TensorState:
    """What the moves so far made of one tensor."""

    slow_from: int | None
    """Boundary from which the slow copy is valid; None where it is not, until something writes it."""
    latest: int | None = None
    """Number of its latest residency."""
    is_held: bool = False
    """Whether the latest residency holds the current content."""
    input_fast: bool = False
    """Whether the latest input move was Copy or NoCopy; binds the output move of the same visit."""
    binds: bool = False
    """What is placed binds moves to come, so that dropping them all is no way out."""
    group_fast: bool | None = None
    """Whether the whole tensor is fast, once that is decided; only where its alias group is uniform."""


class PlainGame(Game):
    """A game that is played by the plain rules."""

    def reset(self) -> State:
        """The state before the first move."""
        return State(self)

    def latency_ps(self, step: int, fast: Sequence[bool]) -> int:
        """Latency of all runs of a step; ``fast`` is over all uses of the program."""
        info, first = self.problem.steps[step], self.problem.first_use[step]
        return info.weight * info.latency_ps(fast[first : first + len(info.uses)])


def reset(problem: Problem, **options: Any) -> State:
    """A new game, before its first move; options are those of :class:`Game`."""
    return PlainGame(problem, **options).reset()


class State:
    """A state of the game: everything decided so far. :meth:`step` changes it; :meth:`copy` is cheap enough to search with."""

    def __init__(self, game: PlainGame):
        self.game = game
        problem = game.problem
        self.position = 0
        """Number of the move to make; the number of moves where all are made."""
        self.return_ps = 0
        """Sum of all rewards so far: what the placed uses save against all slow."""
        self.is_lost = False
        """No action was legal, and Drop-backup is off."""
        self.fast = [False] * problem.use_count
        self.residencies: list[Residency] = []
        self.copies: list[Copy] = []
        self.tensors = [TensorState(slow_from=0 if tensor.is_input else None) for tensor in problem.tensors]
        self.channel = Channel(game.slots.supply_ps)
        self.dropped: frozenset[int] = frozenset()
        """Alias groups that Drop-backup forbids to place."""
        self.resets = 0
        """How often an infeasible state led back."""
        self._legal: tuple[Action, ...] | None = None
        self._backup: State | None = None
        self._save_backup()

    def copy(self) -> State:
        """An independent state that is equal; the two share the game and the backup, which no move changes."""
        other = State.__new__(State)
        other.game = self.game
        other._take(self)
        other.resets, other._backup = self.resets, self._backup
        return other

    @property
    def is_over(self) -> bool:
        """Whether all moves are made, or the game is lost."""
        return self.is_lost or self.position == len(self.game.moves)

    @property
    def move(self) -> Move:
        """The move to make; IndexError where all are made."""
        return self.game.moves[self.position]

    def legal_actions(self) -> tuple[Action, ...]:
        """Actions allowed now; none once the game is over, at least one before."""
        if self._legal is None:
            self._legal = () if self.is_over else self._legal_actions()
        return self._legal

    def placement(self, action: Action) -> Placement | None:
        """What Copy or NoCopy would occupy in the present move; None where it is impossible, and for Drop."""
        if self.is_over or action == Action.DROP:
            return None
        return self._output_placement(action) if self.move.is_output else self._input_placement(action)

    def step(self, action: Action) -> int:
        """Make the move; the reward in ps. ValueError where the action is not legal."""
        if action not in self.legal_actions():
            raise ValueError(f"{Action(action).name} is not legal in move {self.position}")
        before = self.return_ps
        if action == Action.DROP:
            self._drop()
        else:
            placement = self.placement(action)
            assert placement is not None
            self._place(action, placement)
        self.position += 1
        self._legal = None
        if not self.is_over and not self.legal_actions():
            self._leave_infeasible()
        elif not any(tensor.binds for tensor in self.tensors):
            self._save_backup()
        return self.return_ps - before

    def plan(self) -> Plan:
        """The plan that the moves made; ValueError before the game is over. A lost game's plan is all slow."""
        if not self.is_over:
            raise ValueError(f"{len(self.game.moves) - self.position} moves are not made yet")
        fast_uses = [number for number, is_fast in enumerate(self.fast) if is_fast]
        return plan_of(self.game.problem, self.return_ps, self.residencies, self.copies, fast_uses)

    # Which actions are legal

    def _legal_actions(self) -> tuple[Action, ...]:
        may_drop = self._may_drop()
        if self.move.alias_group in self.dropped:
            # While a copy out is under way there is nothing to read in slow memory, but what is there stays till it is done.
            return (Action.DROP,) if may_drop else (Action.NOCOPY,)
        placeable = [action for action in (Action.COPY, Action.NOCOPY) if self.placement(action) is not None]
        return (*placeable, Action.DROP) if may_drop else tuple(placeable)

    def _may_drop(self) -> bool:
        move, tensor = self.move, self.tensors[self.move.tensor]
        if tensor.group_fast:
            return False
        if move.is_output:
            return move.defines or not tensor.input_fast
        return not move.needs_content or (tensor.slow_from is not None and tensor.slow_from <= move.start)

    def _input_placement(self, action: Action) -> Placement | None:
        move, tensor = self.move, self.tensors[self.move.tensor]
        if tensor.group_fast is False:
            return None
        home = None if tensor.latest is None else self.residencies[tensor.latest]
        if action == Action.NOCOPY:
            return self._extension(home, move.end, None) if home is not None and tensor.is_held else None
        if not self.game.may_copy[move.tensor] or tensor.slow_from is None:
            return None
        slots = self.game.slots
        earliest = max(tensor.slow_from, move.released, 0 if home is None else home.end)
        demand = self.game.problem.tensors[move.tensor].copy_in_ps
        window = self.channel.latest(
            demand, slots.number(earliest), slots.number(move.start), strict=self.game.strict_copy_windows
        )
        return None if window is None else self._new_residency(slots.boundaries[window[0]], move.end, window)

    def _output_placement(self, action: Action) -> Placement | None:
        move, tensor = self.move, self.tensors[self.move.tensor]
        if tensor.group_fast is False or not (move.defines or tensor.input_fast):
            return None
        window, end = None, move.live_end
        if action == Action.COPY:
            if not self.game.may_copy[move.tensor]:
                return None
            slots = self.game.slots
            demand = self.game.problem.tensors[move.tensor].copy_out_ps
            # A limit inside or before the visit, in a loop that writes again, leaves no slot.
            first, last = slots.number(move.end), slots.number(move.copy_out_limit)
            window = self.channel.earliest(demand, first, last, strict=self.game.strict_copy_windows)
            if window is None:
                return None
            end = slots.boundaries[window[1]]
        elif move.is_final_output:
            return None
        if move.defines:
            return self._new_residency(move.start, end, window)
        return self._extension(self.residencies[self._latest()], end, window)

    def _latest(self) -> int:
        number = self.tensors[self.move.tensor].latest
        assert number is not None
        return number

    # Where there is room

    def _new_residency(self, start: int, end: int, window: Window | None) -> Placement | None:
        """The lowest or highest free offset for these steps; in a uniform alias group that of its first residency."""
        problem, tensor = self.game.problem, self.move.tensor
        size = problem.tensors[tensor].size
        latest = self.tensors[tensor].latest
        if self.game.is_uniform[tensor] and latest is not None:
            offset = self.residencies[latest].offset
            return Placement(start, end, offset, window) if self._is_free(start, end, offset, size) else None
        occupied = self._occupied(start, end)
        if size >= self.game.large_bytes:
            offset = 0
            for bottom, top in occupied:
                if offset + size <= bottom:
                    break
                offset = max(offset, -(-top // problem.alignment) * problem.alignment)
            return Placement(start, end, offset, window) if offset + size <= problem.capacity else None
        offset = (problem.capacity - size) // problem.alignment * problem.alignment
        for bottom, top in sorted(occupied, key=lambda range_: -range_[1]):
            if top <= offset:
                break
            offset = min(offset, (bottom - size) // problem.alignment * problem.alignment)
        return Placement(start, end, offset, window) if offset >= 0 else None

    def _extension(self, home: Residency, end: int, window: Window | None) -> Placement | None:
        """The same place for longer, up to the boundary ``end``."""
        size = self.game.problem.tensors[home.tensor].size
        end = max(end, home.end)
        return Placement(home.end, end, home.offset, window) if self._is_free(home.end, end, home.offset, size) else None

    def _is_free(self, start: int, end: int, offset: int, size: int) -> bool:
        return all(top <= offset or offset + size <= bottom for bottom, top in self._occupied(start, end))

    def _occupied(self, start: int, end: int) -> list[tuple[int, int]]:
        """Byte ranges taken during any of the steps [start, end), by offset."""
        return sorted(
            (item.offset, item.offset + self.game.problem.tensors[item.tensor].size)
            for item in self.residencies
            if item.start < end and start < item.end
        )

    # What actions do

    def _drop(self) -> None:
        move, tensor = self.move, self.tensors[self.move.tensor]
        tensor = replace(tensor, input_fast=False)
        if move.is_output:
            # Slow memory alone has the new content.
            tensor = replace(tensor, slow_from=move.end, is_held=False, binds=False)
        if self.game.is_uniform[move.tensor]:
            tensor = replace(tensor, group_fast=False)
        self.tensors[move.tensor] = tensor

    def _place(self, action: Action, placement: Placement) -> None:
        move, tensor = self.move, self.tensors[self.move.tensor]
        if move.defines or (action == Action.COPY and not move.is_output):
            tensor = replace(tensor, latest=len(self.residencies), is_held=True)
            self.residencies.append(Residency(move.tensor, placement.start, placement.end, placement.offset))
        else:
            number = self._latest()
            self.residencies[number] = msgspec.structs.replace(self.residencies[number], end=placement.end)
        copied = None if placement.window is None else self._book(placement.window)
        if move.is_output:
            # The write leaves slow memory behind, until a copy out ends; without one an update in place must be fast, too.
            binds = action == Action.NOCOPY and move.is_updated
            tensor = replace(tensor, slow_from=copied, input_fast=False, binds=binds)
        else:
            tensor = replace(tensor, input_fast=True, binds=tensor.binds or move.has_output)
        if self.game.is_uniform[move.tensor]:
            tensor = replace(tensor, group_fast=True, binds=not move.is_last)
        self.tensors[move.tensor] = tensor
        self._serve_fast(move.uses)

    def _book(self, window: Window) -> int:
        """Take the channel for a copy of the present move; the boundary at which it ends."""
        move, bounds = self.move, self.game.slots.boundaries
        info = self.game.problem.tensors[move.tensor]
        self.channel.take(info.copy_out_ps if move.is_output else info.copy_in_ps, window, from_end=not move.is_output)
        start, end = bounds[window[0]], bounds[window[1]]
        self.copies.append(Copy(move.tensor, "out" if move.is_output else "in", start, end))
        return end

    def _serve_fast(self, uses: Sequence[int]) -> None:
        """Serve uses from fast memory and earn what it saves: the benefit, updated for what is fast already (appendix A)."""
        steps = {self.game.problem.step_of_use[use] for use in uses}
        before = sum(self.game.latency_ps(step, self.fast) for step in steps)
        for use in uses:
            self.fast[use] = True
        self.return_ps += before - sum(self.game.latency_ps(step, self.fast) for step in steps)

    # Infeasible states

    def _leave_infeasible(self) -> None:
        """No action is legal: back to the backup, and never again place this alias group; or the game is lost."""
        if not self.game.drop_backup:
            self._take(State(self.game))
            self.is_lost, self._legal = True, None
            return
        backup, group = self._backup, self.move.alias_group
        assert backup is not None
        assert group >= 0
        self._take(backup)
        self.dropped |= {group}
        self._legal = None
        self.resets += 1
        self._save_backup()

    def _save_backup(self) -> None:
        """Keep this state: from here, dropping whatever may be dropped makes a whole game."""
        if self.game.drop_backup:
            self._backup = State.__new__(State)
            self._backup.game = self.game
            self._backup._take(self)

    def _take(self, other: State) -> None:
        """Become equal to another state of the same game."""
        self.position, self.return_ps, self.is_lost = other.position, other.return_ps, other.is_lost
        self.fast, self.residencies, self.copies = other.fast.copy(), other.residencies.copy(), other.copies.copy()
        self.tensors, self.channel = other.tensors.copy(), other.channel.copy()
        self.dropped, self._legal = other.dropped, other._legal
