"""Small graphs of operators, and their least added costs by trying every sequence."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from functools import cache

import msgspec

from stowplan.models.operator_order.problem import of_graph as order_problem
from stowplan.models.rematerialization.problem import Op, Problem, Reservation, Tensor, of_graph
from stowplan.models.rematerialization.structure import build
from tests.models.operator_order import cases as operator_order

#: Values that share the bytes of one instance: its base's number, and the values that are still there.
Group = tuple[int, frozenset[int]]
State = tuple[frozenset[int], frozenset[Group]]


def random_problem(seed: int, most: int = 5) -> Problem:
    """A graph of operator order's tests with costs and operators that run once; no limit."""
    chance = random.Random(1000 + seed)
    problem = of_graph(operator_order.random_problem(seed, most))
    ops = tuple(
        msgspec.structs.replace(op, cost=chance.choice([0, 1, 1, 2, 5]), once=chance.random() < 0.15) for op in problem.ops
    )
    return msgspec.structs.replace(problem, ops=ops)


def training(seed: int, most: int = 4) -> Problem:
    """Forward operators, one after the other, and backward ones that read what those wrote, the last first."""
    chance = random.Random(3000 + seed)
    tensors = [Tensor(id="x", size=chance.randint(0, 3))]
    ops: list[Op] = []
    outputs: list[int] = []

    def add(name: str, reads: list[int], cost: int, size: int | None = None, base: int | None = None) -> int:
        tensors.append(Tensor(id=f"t{len(tensors)}", size=chance.randint(1, 6) if size is None else size, alias_of=base))
        new = len(tensors) - 1
        same = [
            each
            for each in reads
            if base is None and tensors[each].alias_of is None and tensors[each].size == tensors[new].size
        ]
        pairs = ((same[0], new),) if same and seed % 3 == 0 else ()
        once = chance.random() < 0.08
        ops.append(Op(id=name, reads=tuple(dict.fromkeys(reads)), writes=(new,), in_place=pairs, cost=cost, once=once))
        return new

    kept = [0]
    for number in range(chance.randint(2 + (seed % 2), most)):
        last = kept[-1]
        if seed % 5 == 4 and chance.random() < 0.5:
            kept.append(add(f"view{number}", [last], 0, tensors[last].size, last))
        else:
            more = [chance.choice(kept)] if chance.random() < 0.2 else []
            kept.append(add(f"forward{number}", [last, *more], chance.randint(0, 4)))
    gradient = kept[-1]
    for number in range(len(kept) - 1, 0, -1):
        reads = [gradient, kept[number - 1], *([kept[number]] if chance.random() < 0.3 else [])]
        gradient = add(f"backward{number}", reads, chance.randint(0, 4), chance.randint(1, 3))
        if chance.random() < 0.3:
            outputs.append(gradient)
    return Problem(
        name=f"training {seed}",
        tensors=tuple(tensors),
        ops=tuple(ops),
        inputs=(0,),
        outputs=tuple(dict.fromkeys((*outputs, gradient))),
        free_inputs=seed % 4 != 3,
    )


#: Seeds of every second thousand, from this one on, have reservations.
RESERVED = 1000


def is_reserved(seed: int) -> bool:
    """Whether a seed's graph has reservations."""
    return seed // RESERVED % 2 == 1


def with_reservations(problem: Problem, seed: int) -> Problem:
    """A graph in which one or two operators run once, and rows of bytes that are reserved between them.

    All rows count what is live at one of them, so that brute force tries every number of bytes there.
    """
    chance = random.Random(5000 + seed)
    marks = chance.sample(range(len(problem.ops)), min(len(problem.ops), chance.choice([1, 1, 2])))
    ops = tuple(msgspec.structs.replace(op, once=op.once or number in marks) for number, op in enumerate(problem.ops))
    rows, counted = [], chance.choice(marks)
    for _ in range(chance.randint(1, 3)):
        times = chance.choice([0, 0, 1, 2])
        since, until = (chance.choice([None, *marks]) for _ in range(2))
        of = counted if times else None
        rows.append(Reservation(size=chance.randint(0, 5), since=since, until=until, times=times, of=of))
    return msgspec.structs.replace(problem, ops=ops, reserved=tuple(rows))


@cache
def limited(seed: int) -> Problem:
    """One of either with a limit between the least and the given order's peak, or just below the least."""
    problem = random_problem(seed) if seed % 3 == 2 else training(seed)
    problem = with_reservations(problem, seed) if is_reserved(seed) else problem
    chance = random.Random(2000 + seed)
    low, high = least_peak(problem), peak_once(problem)
    return msgspec.structs.replace(problem, limit=max(0, chance.randint(low - (seed % 9 == 0), max(low, high))))


def peak_once(problem: Problem) -> int:
    """Least peak where every operator runs once; of graphs with reservations that of the order given."""
    if problem.reservations:
        structure = build(problem)
        return structure.made(structure.order).peak
    return operator_order.least_peak(order_problem(problem))


@cache
def least_peak(problem: Problem) -> int:
    """Least peak in bytes, whatever it costs."""
    found = [_search(problem, lambda key, cost, live: max(key, live), counted) for counted in _counted(problem)]
    return min(peak for peak in found if peak is not None)


@cache
def least_cost(problem: Problem) -> int | None:
    """Least added cost within the limit; None where there is no plan."""
    limit = problem.limit

    def extend(key: int, cost: int, live: int) -> int | None:
        return key + cost if limit is None or live <= limit else None

    found = [_search(problem, extend, counted) for counted in _counted(problem)]
    return min((cost for cost in found if cost is not None), default=None)


def _counted(problem: Problem) -> list[int]:
    """Bytes that may be live at the operators that reservations count."""
    total = sum(tensor.size for tensor in problem.tensors)
    return [*range(total + 1)] if any(row.times for row in problem.reservations) else [0]


def load(problem: Problem, done: frozenset[int], op: int, live: int, counted: int) -> int | None:
    """What is live and reserved while an operator runs; None where more is live than reservations count."""
    most = 0
    for row in problem.reservations:
        if row.of == op and live > counted:
            return None
        is_alone = row.since is not None and row.since == row.until
        has_begun = row.since is None or row.since in done or row.since == op
        is_over = row.until is not None and (row.until in done or row.until == op)
        if row.since == op if is_alone else has_begun and not is_over:
            most = max(most, row.size + row.times * counted)
    return live + most


def _search(problem: Problem, extend: Callable[[int, int, int], int | None], counted: int = 0) -> int | None:
    """Dijkstra's algorithm over what has run and what is there.

    ``extend`` gives the key after a run of the key before, the cost that the run adds, and the bytes live and reserved while it
    runs, where reservations count so many bytes as live.
    """
    tensors = problem.tensors
    written = {tensor for op in problem.ops for tensor in op.writes}

    def source(tensor: int) -> int:
        while tensor not in written and (base := tensors[tensor].alias_of) is not None:
            tensor = base
        return tensor

    inputs = {*map(source, problem.inputs)}
    stays = {*map(source, problem.outputs), *(() if problem.free_inputs else inputs)}
    needs = [
        {source(each) for each in op.reads}
        | {source(base) for each in op.writes if (base := tensors[each].alias_of) is not None and source(base) not in op.writes}
        for op in problem.ops
    ]
    read = {each for one in needs for each in one}
    start: State = (frozenset(), frozenset((each, frozenset([each])) for each in inputs if each in read | stays))
    best = {start: 0}
    heap: list[tuple[int, int, State]] = [(0, 0, start)]
    ticket = itertools.count(1)
    while heap:
        key, _, state = heapq.heappop(heap)
        if best[state] < key:
            continue
        done, groups = state
        if len(done) == len(problem.ops) and stays <= {each for _, group in groups for each in group}:
            return key
        for number, op in enumerate(problem.ops):
            barred = any(one == number and other in done for one, other in problem.precedences)
            waits = any(other == number and one not in done for one, other in problem.precedences)
            if barred or waits or (number in done and op.once):
                continue
            for after, live in _runs(problem, op, needs[number], stays & inputs, groups, source):
                following = (done | {number}, after)
                taken = load(problem, done, number, live, counted)
                total = None if taken is None else extend(key, op.cost if number in done else 0, taken)
                if total is not None and total < best.get(following, 1 << 60):
                    best[following] = total
                    heapq.heappush(heap, (total, next(ticket), following))
    return None


def _runs(
    problem: Problem, op: Op, needs: set[int], held: set[int], groups: frozenset[Group], source: Callable[[int], int]
) -> Iterator[tuple[frozenset[Group], int]]:
    """What may be there after an operator runs, each with the bytes that are live while it does; nothing where it cannot."""
    tensors = problem.tensors
    if not needs <= {each for _, group in groups for each in group}:
        return
    # What the operator writes anew leaves the group where it was.
    old = [(base, set(group) - set(op.writes)) for base, group in groups]
    operands = [next(at for at, (_, group) in enumerate(groups) if source(operand) in group) for operand, _ in op.in_place]
    every = [*old, *((each, {each}) for each in op.writes if tensors[each].alias_of is None)]
    bytes_there = sum(tensors[base].size for base, group in every if group)
    waiting = [each for each in op.writes if tensors[each].alias_of is not None]
    while waiting:
        tensor = next(each for each in waiting if source(tensors[each].alias_of or 0) not in waiting)
        waiting.remove(tensor)
        base = source(tensors[tensor].alias_of or 0)
        # The last of them is the newest instance.
        next(group for _, group in reversed(every) if base in group).add(tensor)
    # What the operator has nothing to do with could have been dropped before.
    free = sorted((needs | {*op.writes}) - held)
    for count in range(len(free) + 1):
        for dropped in itertools.combinations(free, count):
            after = [group - {*dropped} for _, group in every]
            saved = sum(tensors[result].size for at, (_, result) in zip(operands, op.in_place, strict=True) if not after[at])
            there = frozenset((base, frozenset(left)) for (base, _), left in zip(every, after, strict=True) if left)
            yield there, bytes_there - saved
