"""What the moves to come can see of a state of MMapGame, and what they can still earn at most."""

from __future__ import annotations

from collections.abc import Hashable
from itertools import product

from benchmarks.lib.memory_mapping.plain_game import PlainGame, State, TensorState
from stowplan.learned_guidance.memory_mapping.game.game import Move

#: A step with more undecided tensors is bounded by its least latency, without a look at capacity.
MAX_OPEN_TENSORS = 8

SLOW, FAST, OPEN = 0, 1, 2


class Future:
    """Keys of states: equal keys have the same legal actions, placements and rewards in all moves to come."""

    def __init__(self, game: PlainGame):
        self.game = game
        count = len(game.moves)
        self.next_moves: list[dict[int, Move]] = [{} for _ in range(count + 1)]
        """By position: the next move of every tensor that has one."""
        for position in reversed(range(count)):
            move = game.moves[position]
            self.next_moves[position] = {**self.next_moves[position + 1], move.tensor: move}
        position_of = {use: position for position, move in enumerate(game.moves) for use in move.uses}
        last_of_step = [-1] * game.problem.horizon
        for use, position in position_of.items():
            step = game.problem.step_of_use[use]
            last_of_step[step] = max(last_of_step[step], position)
        self.decided: list[tuple[int, ...]] = [
            tuple(use for use, done in position_of.items() if done < position <= last_of_step[game.problem.step_of_use[use]])
            for position in range(count + 1)
        ]
        """By position: decided uses of steps that still have undecided ones; later rewards depend on them."""

    def key(self, state: State) -> Hashable:
        """A key of the state; its return is no part of it. Defined for games without Drop-backup."""
        if state.is_over:
            return (state.position, state.is_lost)
        tensors = []
        # No later move looks at memory or channel before this boundary.
        reach = state.move.start
        for tensor, move in self.next_moves[state.position].items():
            seen, earliest = self._tensor(state, tensor, move)
            tensors.append(seen)
            reach = min(reach, earliest)
        return (
            state.position,
            tuple(tensors),
            tuple(state.fast[use] for use in self.decided[state.position]),
            self._memory(state, reach),
            self._channel(state, reach),
        )

    def _tensor(self, state: State, number: int, move: Move) -> tuple[Hashable, int]:
        """What later moves see of a tensor, and the earliest boundary from which they can occupy anything for it."""
        tensor = state.tensors[number]
        home = None if tensor.latest is None else state.residencies[tensor.latest]
        group = None
        if self.game.is_uniform[number]:
            group = (tensor.group_fast, None if home is None else home.offset)
        if move.defines:
            return group, move.start
        earliest, held, slow = move.start, None, None
        if tensor.is_held and home is not None:
            held = (home.end, home.offset)
            earliest = min(earliest, home.end)
        if tensor.slow_from is not None:
            copy_from = max(tensor.slow_from, 0 if home is None else home.end)
            slow = (copy_from, max(tensor.slow_from, state.move.start))
            earliest = min(earliest, copy_from)
        return (group, held, slow, move.is_output and tensor.input_fast), earliest

    def _memory(self, state: State, reach: int) -> Hashable:
        """Occupied bytes of every step from ``reach`` on, joined where they touch."""
        tensors = state.game.problem.tensors
        marks: list[list[tuple[int, int]]] = [[] for _ in range(reach, state.game.problem.horizon)]
        for item in sorted(state.residencies, key=lambda item: item.offset):
            top = item.offset + tensors[item.tensor].size
            for step in range(max(reach, item.start), item.end):
                ranges = marks[step - reach]
                if ranges and ranges[-1][1] == item.offset:
                    ranges[-1] = (ranges[-1][0], top)
                else:
                    ranges.append((item.offset, top))
        return tuple(map(tuple, marks))

    def _channel(self, state: State, reach: int) -> Hashable:
        """Supplies from ``reach`` on, and windows that go on there; of a window that began before, only that it did."""
        first = self.game.slots.number(reach)
        windows = sorted((max(start, first - 1), end) for start, end in state.channel.windows if end > first)
        return (tuple(state.channel.supply_ps[first:]), tuple(windows))


class OptimisticReturn:
    """An upper bound of the return of all games from a state on.

    Each step by itself is served as well as its decided uses and the capacity allow; copies and other steps are left out, but
    for tensors whose content can no longer come to fast memory.
    """

    def __init__(self, game: PlainGame):
        self.game = game
        self._savings: dict[tuple[int, tuple[int, ...]], int] = {}

    def __call__(self, state: State) -> int:
        """Return so far and the most that the undecided uses can save, in ps."""
        undecided: dict[int, set[int]] = {}
        can_be_fast = [self._can_hold(state, number) for number in range(len(state.tensors))]
        for move in self.game.moves[state.position :]:
            can_be_fast[move.tensor] |= move.defines and self._may_place(state, move.tensor)
            for use in move.uses if can_be_fast[move.tensor] else ():
                undecided.setdefault(self.game.problem.step_of_use[use], set()).add(use)
            # Even where this write is dropped, what it writes may be copied in.
            can_be_fast[move.tensor] |= (
                move.is_output and self.game.may_copy[move.tensor] and self._may_place(state, move.tensor)
            )
        total = state.return_ps
        for step, uses in undecided.items():
            first = self.game.problem.first_use[step]
            count = len(self.game.problem.steps[step].uses)
            served = tuple(OPEN if use in uses else FAST if state.fast[use] else SLOW for use in range(first, first + count))
            total += self._most_saved(step, served)
        return total

    def _may_place(self, state: State, number: int) -> bool:
        fits = self.game.problem.tensors[number].size <= self.game.problem.capacity
        return fits and state.tensors[number].group_fast is not False

    def _can_hold(self, state: State, number: int) -> bool:
        """Whether the present content of a tensor can be read from fast memory in a later move."""
        tensor: TensorState = state.tensors[number]
        if not self._may_place(state, number):
            return False
        return tensor.is_held or (self.game.may_copy[number] and tensor.slow_from is not None)

    def _most_saved(self, step: int, served: tuple[int, ...]) -> int:
        if (step, served) not in self._savings:
            info = self.game.problem.steps[step]
            now = info.latency_ps([state == FAST for state in served])
            self._savings[step, served] = info.weight * (now - self._least_latency(step, served))
        return self._savings[step, served]

    def _least_latency(self, step: int, served: tuple[int, ...]) -> int:
        """Least latency over all ways to serve the open uses whose tensors fit into memory beside each other."""
        problem = self.game.problem
        info = problem.steps[step]
        always = {use.tensor for use, state in zip(info.uses, served, strict=True) if state == FAST}
        tensors = sorted({use.tensor for use, state in zip(info.uses, served, strict=True) if state == OPEN} - always)
        if len(tensors) > MAX_OPEN_TENSORS:
            return info.floor_ps
        best = info.latency_ps([state == FAST for state in served])
        for choice in product([False, True], repeat=len(tensors)):
            chosen = always | {tensor for tensor, is_chosen in zip(tensors, choice, strict=True) if is_chosen}
            if sum(problem.tensors[tensor].size for tensor in chosen) <= problem.capacity:
                fast = [
                    state == FAST or (state == OPEN and use.tensor in chosen)
                    for use, state in zip(info.uses, served, strict=True)
                ]
                best = min(best, info.latency_ps(fast))
        return best
