"""Small graphs with a host behind a channel, and their least added costs by trying every step."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import msgspec

from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.problem import Host, Op, Problem, Tensor
from stowplan.models.rematerialization.structure import build
from tests.models.rematerialization.cases import is_reserved, load, peak_once, random_problem, training, with_reservations

#: Seeds of graphs with three operators forward, of the first 300, that take long to try.
SLOW = {
    *(9, 10, 27, 37, 55, 57, 58, 63, 71, 75, 78, 88, 97, 120, 147, 150, 156, 180, 184, 190, 192, 205, 213, 217, 220, 225, 231),
    *(234, 259, 261, 270, 273, 279, 295, 297),
}


def hosted(seed: int, most: int = 4) -> Problem:
    """A graph with a channel, and a limit between the most that one operator takes and the given order's peak."""
    problem = random_problem(seed, most) if seed % 3 == 2 else training(seed, most)
    if is_reserved(seed):
        # What is live is not known before the end of a plan: these rows are of bytes alone.
        problem = with_reservations(problem, seed)
        rows = tuple(msgspec.structs.replace(row, times=0, of=None) for row in problem.reservations)
        problem = msgspec.structs.replace(problem, reserved=rows)
    chance = random.Random(4000 + seed)
    host = Host(bandwidth=chance.choice([0.5, 1, 2, 3, 8]), limit=chance.choice([2, 5, 9, 40]))
    structure = build(problem)
    moments, kept = Moments(structure), {structure.root[value] for value, is_kept in enumerate(structure.kept) if is_kept}
    least = max([sum(structure.size[value] for value in kept), *map(moments.own_bytes, range(structure.ops))])
    high = peak_once(problem) - 1
    limit = max(0, chance.randint(min(least, high), max(least, high)) - (seed % 9 == 0))
    return msgspec.structs.replace(problem, host=host, limit=limit)


def chain(length: int, limit: int, bandwidth: float, host: int = 1 << 40, size: int = 4, cost: int = 2) -> Problem:
    """Forward operators, and backward ones that read what those wrote, the last first; all alike."""
    tensors = [Tensor(id="x", size=size)]
    ops: list[Op] = []
    for number in range(length):
        tensors.append(Tensor(id=f"a{number}", size=size))
        ops.append(Op(id=f"forward{number}", reads=(number,), writes=(number + 1,), cost=cost))
    gradient = length
    for number in range(length - 1, -1, -1):
        tensors.append(Tensor(id=f"g{number}", size=size))
        ops.append(Op(id=f"backward{number}", reads=(gradient, number), writes=(len(tensors) - 1,), cost=2 * cost))
        gradient = len(tensors) - 1
    channel = Host(bandwidth=bandwidth, limit=host)
    return Problem(
        name=f"chain {length}",
        tensors=tuple(tensors),
        ops=tuple(ops),
        inputs=(0,),
        outputs=(gradient,),
        limit=limit,
        host=channel,
    )


class Group(NamedTuple):
    """One instance on the device."""

    base: int
    values: frozenset[int]
    """Of those with its bytes, those that are the newest of their tensors."""
    arrives: int = 0
    """How long from now its content is there."""
    on_host: bool = False
    """Nobody has needed it yet, and it is the last one fetched from its copy on the host."""
    is_sending: bool = False
    """Its copy to the host has not been waited for."""
    is_unread: bool = False
    """It was fetched, and nobody has needed it yet."""


class State(NamedTuple):
    """What has run, what is where, and how long from now each queue is free."""

    done: frozenset[int]
    groups: tuple[Group, ...]
    """Sorted."""
    stays: tuple[tuple[int, int], ...]
    """(tensor, how long from now its copy has ended; -1 where that was waited for), sorted."""
    sends_free: int = 0
    fetches_free: int = 0


class _Search:
    def __init__(self, problem: Problem):
        self.problem = problem
        tensors = problem.tensors
        self.written = {tensor for op in problem.ops for tensor in op.writes}
        inputs = {*map(self.source, problem.inputs)}
        self.outputs = {*map(self.source, problem.outputs)}
        self.held = set() if problem.free_inputs else inputs
        self.needs = [
            {self.source(each) for each in op.reads}
            | {
                self.source(base)
                for each in op.writes
                if (base := tensors[each].alias_of) is not None and self.source(base) not in op.writes
            }
            for op in problem.ops
        ]
        read = {each for one in self.needs for each in one} | self.outputs | self.held
        groups = (Group(each, frozenset([each])) for each in inputs if each in read)
        self.start = State(frozenset(), tuple(sorted(groups, key=repr)), ())
        assert problem.channel is not None
        self.host_limit = problem.channel.limit
        self.is_host_tight = self.host_limit < sum(tensor.size for tensor in problem.tensors if tensor.alias_of is None)
        self.limit = 1 << 60 if problem.limit is None else problem.limit

    def source(self, tensor: int) -> int:
        while tensor not in self.written and (base := self.problem.tensors[tensor].alias_of) is not None:
            tensor = base
        return tensor

    def size(self, tensor: int) -> int:
        return self.problem.tensors[tensor].size

    def least(self, most: int) -> int | None:
        """Least added cost, where that is no more than ``most``; else None.

        Keys are what has been added so far: time that has gone by, less what has run costs once.
        """
        costs = [op.cost for op in self.problem.ops]
        best = {self.start: 0}
        heap: list[tuple[int, int, State | None]] = [(0, 0, self.start)]
        ticket = itertools.count(1)
        while heap:
            added, _, state = heapq.heappop(heap)
            if state is None:
                return added
            if best[state] < added:
                continue
            values = {each: group for group in state.groups for each in group.values}
            if len(state.done) == len(costs) and self.outputs <= values.keys():
                end = max([0, *(values[each].arrives for each in self.outputs)])
                heapq.heappush(heap, (added + end, next(ticket), None))
            for spent, after in self.steps(state):
                held = sum(self.size(group.base) for group in after.groups if group.on_host)
                if held + sum(self.size(tensor) for tensor, _ in after.stays) > self.host_limit:
                    continue
                moved = _later(after, spent)
                key = added + spent - sum(costs[op] for op in after.done - state.done)
                left = sum(costs) - sum(costs[op] for op in after.done)
                if key + max(0, max(moved.sends_free, moved.fetches_free) - left) > most:
                    continue
                if key < best.get(moved, 1 << 60):
                    best[moved] = key
                    heapq.heappush(heap, (key, next(ticket), moved))
        return None

    def steps(self, state: State) -> Iterator[tuple[int, State]]:
        """What each step takes, and the state behind it, with times still from before it."""
        for number, op in enumerate(self.problem.ops):
            barred = any(one == number and other in state.done for one, other in self.problem.precedences)
            waits = any(other == number and one not in state.done for one, other in self.problem.precedences)
            if not (barred or waits or (number in state.done and op.once)):
                yield from self.runs(state, number)
        yield from self.moves(state)

    def needed(self, groups: list[Group], values: set[int]) -> tuple[int, list[Group]]:
        """How long from now what is needed is there; it stands on the host for nobody from then on."""
        wait, after = 0, []
        for group in groups:
            if group.values & values:
                wait, group = max(wait, group.arrives), group._replace(on_host=False, is_unread=False)
            after.append(group)
        return wait, after

    def moves(self, state: State) -> Iterator[tuple[int, State]]:
        problem = self.problem
        on_host = dict(state.stays)
        for at, group in enumerate(state.groups):
            if group.base not in group.values or group.base in on_host or group.is_sending or not self.size(group.base):
                continue
            wait, groups = self.needed(list(state.groups), {group.base})
            free = max(wait, state.sends_free) + problem.copy_cost(group.base)
            stays = tuple(sorted((*state.stays, (group.base, free))))
            groups[at] = groups[at]._replace(is_sending=True)
            yield wait, state._replace(groups=_sorted(groups), stays=stays, sends_free=free)
        for tensor, arrives in state.stays:
            others = [stay for stay in state.stays if stay[0] != tensor]
            if arrives > 0:
                groups = [group._replace(is_sending=False) if group.base == tensor else group for group in state.groups]
                yield arrives, state._replace(groups=_sorted(groups), stays=tuple(sorted([*others, (tensor, -1)])))
                continue
            if any(tensor in group.values for group in state.groups):
                continue
            free = state.fetches_free + problem.copy_cost(tensor)
            for is_last in (False, True) if self.is_host_tight else (False,):
                stays = tuple(others) if is_last else state.stays
                reserved = load(problem, state.done, -1, 0, 0) or 0
                for groups in self.fitting(list(state.groups), self.size(tensor) + reserved, set(), []):
                    after = _sorted([*groups, Group(tensor, frozenset([tensor]), free, is_last, False, True)])
                    yield 0, state._replace(groups=after, stays=stays, fetches_free=free)

    def fitting(self, groups: list[Group], more: int, needs: set[int], pairs: list[tuple[int, int]]) -> Iterator[list[Group]]:
        """What is left for bytes ``more`` to fit, with as little gone as can be: one more there never harms.

        ``pairs`` are groups whose place a result may take, and its bytes.
        """
        excess = sum(self.size(group.base) for group in groups) + more - self.limit
        choices = [
            (at, self.size(group.base))
            for at, group in enumerate(groups)
            if not (group.values & (needs | self.held) or group.is_sending or group.is_unread)
        ]
        choices += [(at, size) for at, size in pairs if not (groups[at].values & self.held or groups[at].is_sending)]
        tried: list[set[int]] = []
        for count in range(len(choices) + 1):
            for chosen in itertools.combinations(choices, count):
                gone = {at for at, _ in chosen}
                if len(gone) == count and sum(size for _, size in chosen) >= excess and not any(less <= gone for less in tried):
                    tried.append(gone)
                    yield [group for at, group in enumerate(groups) if at not in gone]

    def runs(self, state: State, number: int) -> Iterator[tuple[int, State]]:
        problem, op, needs = self.problem, self.problem.ops[number], self.needs[number]
        tensors = problem.tensors
        if not needs <= {each for group in state.groups for each in group.values}:
            return
        wait, groups = self.needed(list(state.groups), needs)
        operands = [
            next(at for at, one in enumerate(groups) if self.source(operand) in one.values) for operand, _ in op.in_place
        ]
        pairs = [(at, self.size(result)) for at, (_, result) in zip(operands, op.in_place, strict=True)]
        new = [each for each in op.writes if tensors[each].alias_of is None]
        reserved = load(problem, state.done, number, 0, 0) or 0
        for left in self.fitting(groups, sum(map(self.size, new)) + reserved, needs, pairs):
            after = [one._replace(values=one.values - ({*op.writes} - self.held)) for one in left]
            after += [Group(each, frozenset([each])) for each in new]
            waiting = [each for each in op.writes if tensors[each].alias_of is not None]
            while waiting:
                tensor = next(each for each in waiting if self.source(tensors[each].alias_of or 0) not in waiting)
                waiting.remove(tensor)
                base = self.source(tensors[tensor].alias_of or 0)
                at = next((at for at in range(len(after) - 1, -1, -1) if base in after[at].values), -1)
                if at < 0:
                    break  # its operand's place is taken, so that a view of it cannot be read
                after[at] = after[at]._replace(values=after[at].values | {tensor})
            else:
                yield wait + op.cost, state._replace(done=state.done | {number}, groups=_sorted(after))


def _sorted(groups: list[Group]) -> tuple[Group, ...]:
    left = (one for one in groups if one.values or one.is_sending)
    return tuple(sorted(left, key=lambda one: (one.base, sorted(one.values), *one[2:])))


def _later(state: State, spent: int) -> State:
    """The state after a time; what has ended by then is waited for at once, which costs nothing."""
    stays = tuple((tensor, arrives - spent if arrives > spent else -1) for tensor, arrives in state.stays)
    ended = {tensor for tensor, arrives in stays if arrives < 0}
    groups = [
        one._replace(arrives=max(0, one.arrives - spent), is_sending=one.is_sending and one.base not in ended)
        for one in state.groups
    ]
    free = (max(0, state.sends_free - spent), max(0, state.fetches_free - spent))
    return State(state.done, _sorted(groups), stays, *free)


@cache
def least_cost(problem: Problem) -> int | None:
    """Least added cost within the limits; None where there is no plan, or none that takes three times what all takes once."""
    search, once = _Search(problem), sum(op.cost for op in problem.ops)
    longest = 2 * once + 4 * sum(problem.copy_cost(tensor) for tensor in range(len(problem.tensors)))
    for most in (0, 2, 5, 10, 20, longest):
        least = search.least(most)
        if least is not None:
            return least
    return None
