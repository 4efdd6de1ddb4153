"""The true optimum of tiny problems, over all valid plans: for exact models to be held against.

The search is complete because every valid plan can be turned, without a loss, into one that it visits:

1. *Copies that nothing needs, and residencies without a fast use, go.* The engine is first come, first served: without a copy,
   or with one queued or waited for elsewhere in the ways below, every completion and every wait comes no later. So a residency
   has a fast use, content written fast is copied out at most once before the next write, and that only where a slow read, a
   copy-in or the program's end asks for it.
2. *A residency whose first fast use defines the tensor starts there*, unless that step is inside a loop that the tensor enters
   or leaves: an earlier start costs memory and a copy-in. Otherwise it is preloaded, or has a copy-in that starts with it.
3. *A copy ends as late as it may*: a copy-in at the first fast use, a copy-out at the first demand, the next write or the end
   of its residency. To wait later is never worse.
4. *A residency ends with its last fast use*, or at a later boundary that lets its copy-out end later or have an empty window.
5. *In a given queue order a copy-out starts as early as it may.* With several engines there is one exception: a copy with an
   empty window is waited for after others of the same boundary are queued, not before, so that start = end is tried too.
6. *In order of offsets, each residency drops onto those below it that share a step with it*, so that orders stand for offsets.

7. *A copy out that leaves its place between two steps stands before the copies in of its boundary.* All of them run while the
   program stands still there, until this copy is complete at least; in another order none is waited for less.

So the choices are: fast or slow for each use, residencies as runs of fast uses, start of each copy-in or a preload, end of each
residency with a copy-out, the order of the queue, the order of offsets. Choices of fast uses are visited in order of their
latency without stalls, until that alone is no better than the best plan.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, count, pairwise, product

from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import InFlight, Problem, Step


def optimum(problem: Problem) -> int:
    """Objective (ps) of the best valid plan; there always is one, since all may be slow."""
    return best_plan(problem).objective


def best_plan(problem: Problem) -> Plan:
    """A valid plan that no valid plan undercuts."""
    return _Search(problem).run()


@dataclass(frozen=True)
class Unit:
    """A step's use of one tensor: a read, a write, or both in place, then from one memory."""

    step: int
    reads: bool
    writes: bool


@dataclass(frozen=True)
class Store:
    """A copy-out: the boundary from which it may start, where it ends, and whether it may start there too."""

    release: int
    end: int
    may_be_empty: bool
    leaves: bool = False
    """It ends where its residency does: in an empty window, no copy-in of that boundary stands before it."""


@dataclass(frozen=True)
class Life:
    """What one tensor does: stays (start, end, preloaded), copy-ins (start, end), copy-outs."""

    stays: tuple[tuple[int, int, bool], ...]
    loads: tuple[tuple[int, int], ...]
    stores: tuple[Store, ...]


Source = tuple[int, str]
"""Start of a residency, and "write", "copy" or "preload"."""


class _Tensor:
    """All lives of one tensor that points 1 to 4 leave."""

    def __init__(self, problem: Problem, tensor: int) -> None:
        self.problem, self.info, self.horizon = problem, problem.tensors[tensor], problem.horizon
        self.units = [
            Unit(index, False in roles, True in roles)
            for index, step in enumerate(problem.steps)
            if (roles := {use.is_output for use in step.uses if use.tensor == tensor})
        ]
        steps = [unit.step for unit in self.units]
        lives_in = [
            loop
            for loop in problem.loops
            if steps and not self.info.is_input and not self.info.is_output
            if loop.start <= steps[0] and steps[-1] < loop.end
        ]
        self.outer_loops = [loop for loop in problem.loops if loop not in lives_in]
        self.may_copy = not lives_in
        self.whole_group = problem.alias_rule == "uniform" and len(self.info.members) > 1
        self.in_flight = [held for held in problem.in_flight if held.tensor == tensor]
        boundaries = range(problem.horizon + 1)
        # Sorted boundaries at which residencies, and copies, may start and end.
        self.marks = [b for b in boundaries if not any(loop.start < b < loop.end for loop in self.outer_loops)]
        self.copy_marks = [b for b in boundaries if not any(loop.start < b < loop.end for loop in problem.loops)]

    def choices(self) -> Iterator[tuple[tuple[bool, ...], list[Life]]]:
        """(which units are fast, lives that serve them so)."""
        for fast in product([True, False], repeat=len(self.units)):
            if self.whole_group and len(set(fast)) > 1:
                continue
            if any(self._mixes(loop.start, loop.end, fast) for loop in self.outer_loops):
                continue
            if any(self._is_torn(held, fast) for held in self.in_flight):
                continue
            lives = [life for life in dict.fromkeys(self._lives(fast)) if self._is_held(life, fast)]
            if lives:
                yield fast, lives

    def _mixes(self, start: int, end: int, fast: tuple[bool, ...]) -> bool:
        inside = [place for place, unit in enumerate(self.units) if start <= unit.step < end]
        return any(self.units[place].writes for place in inside) and len({fast[place] for place in inside}) > 1

    def _is_torn(self, held: InFlight, fast: tuple[bool, ...]) -> bool:
        return len({fast[place] for place, unit in enumerate(self.units) if held.start <= unit.step < held.end}) > 1

    def _is_held(self, life: Life, fast: tuple[bool, ...]) -> bool:
        """Whether residencies cover asynchronous operations whose uses are fast, and meet no others."""
        for held in self.in_flight:
            is_fast = any(fast[place] for place, unit in enumerate(self.units) if held.start <= unit.step < held.end)
            for start, end, _ in life.stays:
                meets, covers = start < held.end and held.start < end, start <= held.start and held.end <= end
                if meets and not (covers and is_fast):
                    return False
        return True

    def _lives(self, fast: tuple[bool, ...]) -> Iterator[Life]:
        for groups in self._groups(fast):
            for sources in product(*(self._sources(group, fast) for group in groups)):
                demands = self._demands(groups, sources, fast)
                if demands is None:
                    continue
                loads = tuple(
                    (start, self._last_copy_mark(self.units[group[0]].step))
                    for group, (start, kind) in zip(groups, sources, strict=True)
                    if kind == "copy"
                )
                if self.problem.stalls == "forbidden" and any(start == end for start, end in loads):
                    continue
                limits = [*(start for start, _ in sources[1:]), self.horizon][: len(groups)]
                ends = [self._ends(group, limit, demands, fast) for group, limit in zip(groups, limits, strict=True)]
                for chosen in product(*ends):
                    yield Life(
                        tuple((start, end, kind == "preload") for (start, kind), (end, _) in zip(sources, chosen, strict=True)),
                        loads,
                        tuple(store for _, stores in chosen for store in stores),
                    )

    def _groups(self, fast: tuple[bool, ...]) -> Iterator[list[list[int]]]:
        """Fast units as runs, one for each residency; no slow write within a run."""
        places = [place for place, is_fast in enumerate(fast) if is_fast]
        joints = []
        for one, two in pairwise(places):
            torn = any(self.units[place].writes for place in range(one + 1, two))
            joints.append([False] if torn else [True, False])
        for joined in product(*joints):
            groups = [[places[0]]] if places else []
            for place, is_joined in zip(places[1:], joined, strict=True):
                if is_joined:
                    groups[-1].append(place)
                else:
                    groups.append([place])
            yield groups

    def _sources(self, group: list[int], fast: tuple[bool, ...]) -> list[Source]:
        first = self.units[group[0]]
        if first.writes and not first.reads and first.step in self.marks:
            return [(first.step, "write")]
        if not self.may_copy:
            return []
        # After the residency before this one, and after the last slow write.
        busy = [unit.step for place, unit in enumerate(self.units[: group[0]]) if fast[place] or unit.writes]
        low = max(busy, default=-1) + 1
        result: list[Source] = [(mark, "copy") for mark in self.copy_marks if low <= mark <= first.step]
        if low == 0 and self.info.is_input and self.problem.max_preloads:
            result.append((0, "preload"))
        return result

    def _demands(self, groups: list[list[int]], sources: tuple[Source, ...], fast: tuple[bool, ...]) -> dict[int, int] | None:
        """For each fast write, the boundary at which its content must be in slow memory; None where a demand finds nothing."""
        wanted = [unit.step for place, unit in enumerate(self.units) if unit.reads and not fast[place]]
        wanted += [start for start, kind in sources if kind == "copy"]
        wanted += [self.horizon] if self.info.is_output else []
        demands: dict[int, int] = {}
        for boundary in sorted(wanted):
            before = [place for place, unit in enumerate(self.units) if unit.writes and unit.step < boundary]
            if not before:
                if not self.info.is_input:
                    return None
            elif fast[before[-1]]:
                if not self.may_copy:
                    return None
                demands.setdefault(before[-1], boundary)
        return demands

    def _ends(
        self, group: list[int], limit: int, demands: dict[int, int], fast: tuple[bool, ...]
    ) -> list[tuple[int, tuple[Store, ...]]]:
        """(end, copies out) of a residency; an end that only takes more memory than the one before is left out."""
        last = group[-1]
        slow_writes = [unit.step for unit, is_fast in zip(self.units, fast, strict=True) if unit.writes and not is_fast]
        limit = min([limit, *(step for step in slow_writes if step > self.units[last].step)])
        result: list[tuple[int, tuple[Store, ...]]] = []
        for end in self.marks[bisect_left(self.marks, self.units[last].step + 1) :]:
            if end > limit:
                break
            stores = []
            for place in group:
                if place in demands:
                    release = self.copy_marks[bisect_left(self.copy_marks, self.units[place].step + 1)]
                    next_write = min((unit.step for unit in self.units[place + 1 :] if unit.writes), default=self.horizon)
                    until = self._last_copy_mark(min(end, demands[place], next_write))
                    allowed = self.problem.stalls == "allowed"
                    between = self.problem.evictions == "between_steps"
                    stores.append(Store(release, until, allowed and (between or until < end), between and until == end))
            fits = all(store.release < store.end + store.may_be_empty for store in stores)
            if fits and (not result or result[-1][1] != tuple(stores)):
                result.append((end, tuple(stores)))
        return result

    def _last_copy_mark(self, boundary: int) -> int:
        return self.copy_marks[bisect_right(self.copy_marks, boundary) - 1]


def _least_ps(step: Step, fast: list[bool | None]) -> int:
    """Least latency of a step when some of its uses are not decided yet."""
    if step.table is not None:
        rows = enumerate(step.table.latency_ps)
        known = [(bit, fast[use]) for bit, use in enumerate(step.table.uses) if fast[use] is not None]
        return min(latency for row, latency in rows if all(bool(row >> bit & 1) == is_fast for bit, is_fast in known))
    return max(
        piece.base_ps
        + sum(
            min(slow, quick) if is_fast is None else quick if is_fast else slow
            for slow, quick, is_fast in zip(piece.slow_ps, piece.fast_ps, fast, strict=True)
        )
        for piece in step.pieces
    )


@dataclass(order=True)
class _Node:
    """Some tensors with their units decided."""

    least_ps: int
    serial: int
    fast: tuple[bool | None, ...] = field(compare=False)
    lives: tuple[list[Life], ...] = field(compare=False)


class _Search:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.number_of: dict[tuple[int, int, bool], int] = {}
        self.step_uses: list[range] = []
        for index, step in enumerate(problem.steps):
            first = len(self.number_of)
            for use in step.uses:
                self.number_of[index, use.tensor, use.is_output] = len(self.number_of)
            self.step_uses.append(range(first, len(self.number_of)))
        self.floor_clock = [0, *accumulate(step.weight * step.floor_ps for step in problem.steps)]
        self.best_ps = problem.all_slow_ps
        self.best = Plan(problem=problem.digest, objective=self.best_ps)
        self.memory_tried: dict[frozenset[tuple[int, int, int]], dict[tuple[int, int], int] | None] = {}

    def run(self) -> Plan:
        tensors = [_Tensor(self.problem, number) for number in range(len(self.problem.tensors))]
        self.order = sorted(range(len(tensors)), key=lambda number: -len(tensors[number].units))
        choices = [(tensors[number], list(tensors[number].choices())) for number in self.order]
        serial = count()
        heap = [_Node(0, next(serial), (None,) * len(self.number_of), ())]
        while heap:
            node = heapq.heappop(heap)
            if node.least_ps >= self.best_ps:
                break
            if len(node.lives) == len(tensors):
                self._settle(node)
                continue
            tensor, options = choices[len(node.lives)]
            for flags, lives in options:
                fast = list(node.fast)
                for unit, is_fast in zip(tensor.units, flags, strict=True):
                    for role in (False, True):
                        number = self.number_of.get((unit.step, self.order[len(node.lives)], role))
                        if number is not None:
                            fast[number] = is_fast
                least = sum(
                    step.weight * _least_ps(step, [fast[number] for number in uses])
                    for step, uses in zip(self.problem.steps, self.step_uses, strict=True)
                )
                child = _Node(least, next(serial), tuple(fast), (*node.lives, lives))
                if least < self.best_ps and self._may_fit(child.lives):
                    heapq.heappush(heap, child)
        return self.best

    def _may_fit(self, chosen: tuple[list[Life], ...]) -> bool:
        """Whether what every life of each tensor needs leaves no step over full."""
        load = [0] * self.problem.horizon
        for number, lives in zip(self.order, chosen, strict=False):
            always = set.intersection(*({t for start, end, _ in life.stays for t in range(start, end)} for life in lives))
            for step in always:
                load[step] += self._room(number)
        return max(load, default=0) <= self._align_up(self.problem.capacity)

    def _align_up(self, size: int) -> int:
        return -(-size // self.problem.alignment) * self.problem.alignment

    def _room(self, tensor: int) -> int:
        return self._align_up(self.problem.tensors[tensor].size)

    def _settle(self, node: _Node) -> None:
        """Find the best plan with these fast uses, if it is better than the best so far."""
        running = [
            step.weight * step.latency_ps([bool(node.fast[number]) for number in uses])
            for step, uses in zip(self.problem.steps, self.step_uses, strict=True)
        ]
        capacity = self._align_up(self.problem.capacity)
        # Few lives first: they fix most for those that follow.
        todo = sorted(zip(self.order, node.lives, strict=True), key=lambda item: len(item[1]))

        def extend(place: int, chosen: list[tuple[int, Life]], load: list[int], queue: list[Copy]) -> None:
            if self.best_ps <= node.least_ps:
                return
            if place == len(todo):
                offsets = self._pack(chosen)
                total = self._total(running, queue)
                if offsets is not None and total < self.best_ps:
                    self._record(node, chosen, queue, offsets, total)
                return
            tensor, lives = todo[place]
            for life in lives:
                now = [*chosen, (tensor, life)]
                if sum(stay[2] for _, other in now for stay in other.stays) > self.problem.max_preloads:
                    continue
                more = [*load]
                for start, end, _ in life.stays:
                    for step in range(start, end):
                        more[step] += self._room(tensor)
                if max(more, default=0) > capacity:
                    continue
                # The copies of some of the tensors take no longer than those of all, so that they bound the whole.
                queued = self._queue(running, now) if life.loads or life.stores else queue
                if queued is not None:
                    extend(place + 1, now, more, queued)

        extend(0, [], [0] * self.problem.horizon, [])

    def _record(
        self,
        node: _Node,
        chosen: list[tuple[int, Life]],
        queue: list[Copy],
        offsets: dict[tuple[int, int], int],
        total_ps: int,
    ) -> None:
        self.best_ps = total_ps
        self.best = Plan(
            problem=self.problem.digest,
            objective=total_ps,
            residencies=tuple(
                Residency(tensor, start, end, offsets[tensor, start], preloaded)
                for tensor, life in chosen
                for start, end, preloaded in life.stays
            ),
            copies=tuple(queue),
            fast_uses=tuple(number for number, is_fast in enumerate(node.fast) if is_fast),
        )

    # Copies

    def _queue(self, running_ps: list[int], chosen: list[tuple[int, Life]]) -> list[Copy] | None:
        """The best order and starts for the copies; None where no order is valid and better than the best plan."""
        loads = [(tensor, load) for tensor, life in chosen for load in life.loads]
        stores = [(tensor, store) for tensor, life in chosen for store in life.stores]
        best: tuple[int, list[Copy] | None] = (self.best_ps, None)
        least = sum(running_ps)

        def extend(queue: list[Copy], loads: list[tuple[int, tuple[int, int]]], stores: list[tuple[int, Store]]) -> None:
            nonlocal best
            if best[0] <= least:
                return
            if self.problem.stalls == "forbidden" and self._is_late(queue):
                return
            if not loads and not stores:
                total = self._total(running_ps, queue)
                if total < best[0]:
                    best = (total, queue)
                return
            now = queue[-1].start if queue else 0
            # The queue is sorted by start, and a copy-in starts where its residency does.
            if any(start < now for _, (start, _) in loads):
                return
            for place, (tensor, (start, end)) in enumerate(loads):
                extend([*queue, Copy(tensor, "in", start, end)], loads[:place] + loads[place + 1 :], stores)
            for place, (tensor, store) in enumerate(stores):
                early = max(now, store.release)
                starts = [early] if early < store.end else []
                if store.may_be_empty and early <= store.end and (self.problem.channels > 1 or early == store.end):
                    starts.append(store.end)
                for start in starts:
                    if store.leaves and start == store.end and any(c.start == start and c.direction == "in" for c in queue):
                        continue
                    rest = stores[:place] + stores[place + 1 :]
                    extend([*queue, Copy(tensor, "out", start, store.end)], loads, rest)

        extend([], loads, stores)
        return best[1]

    def _needs_ps(self, copy: Copy) -> int:
        tensor = self.problem.tensors[copy.tensor]
        return tensor.copy_in_ps if copy.direction == "in" else tensor.copy_out_ps

    def _is_late(self, queue: list[Copy]) -> bool:
        """Whether a copy misses its end when all steps take their least time."""
        engines = [0] * self.problem.channels
        for copy in queue:
            done = max(self.floor_clock[copy.start], engines[0]) + self._needs_ps(copy)
            heapq.heapreplace(engines, done)
            if done > self.floor_clock[copy.end]:
                return True
        return False

    def _total(self, running_ps: list[int], queue: list[Copy]) -> int:
        """When the program ends, waiting for copies."""
        if self.problem.stalls == "forbidden":
            return sum(running_ps)
        engines, now, place = [0] * self.problem.channels, 0, 0
        due = [0] * (self.problem.horizon + 1)
        for boundary in range(self.problem.horizon + 1):
            now = max(now, due[boundary])
            while place < len(queue) and queue[place].start == boundary:
                done = max(now, engines[0]) + self._needs_ps(queue[place])
                heapq.heapreplace(engines, done)
                due[queue[place].end] = max(due[queue[place].end], done)
                place += 1
            now = max(now, due[boundary])
            if boundary < self.problem.horizon:
                now += running_ps[boundary]
        return now

    # Offsets

    def _pack(self, chosen: list[tuple[int, Life]]) -> dict[tuple[int, int], int] | None:
        """Offsets by tensor and start of residency, or None where no packing fits."""
        key = frozenset((tensor, start, end) for tensor, life in chosen for start, end, _ in life.stays)
        if key not in self.memory_tried:
            boxes: list[tuple[int, list[tuple[int, int]]]] = []
            for tensor, life in chosen:
                spans = [(start, end) for start, end, _ in life.stays]
                uniform = self.problem.alias_rule == "uniform" and len(self.problem.tensors[tensor].members) > 1
                # The residencies of an alias group share one offset, so that they drop as one.
                boxes += [(tensor, spans)] if uniform and spans else [(tensor, [span]) for span in spans]
            self.memory_tried[key] = self._drop(boxes, [0] * self.problem.horizon, {})
        return self.memory_tried[key]

    def _drop(
        self, boxes: list[tuple[int, list[tuple[int, int]]]], skyline: list[int], offsets: dict[tuple[int, int], int]
    ) -> dict[tuple[int, int], int] | None:
        if not boxes:
            return offsets
        for place, (tensor, spans) in enumerate(boxes):
            steps = [step for start, end in spans for step in range(start, end)]
            offset = self._align_up(max(skyline[step] for step in steps))
            top = offset + self.problem.tensors[tensor].size
            if top > self.problem.capacity:
                # Nothing that drops later makes room below it.
                return None
            higher = [*skyline]
            for step in steps:
                higher[step] = top
            below = {**offsets, **{(tensor, start): offset for start, _ in spans}}
            found = self._drop(boxes[:place] + boxes[place + 1 :], higher, below)
            if found is not None:
                return found
        return None
