"""Random small problems, and every plan there is for them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

from stowplan.models.bank_mapping import milp
from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import Operator, Problem, Tensor, View
from stowplan.models.mip.matrix import Outcome
from stowplan.models.mip.solve import solve


def random_problem(seed: int, operators: int = 4) -> Problem:
    """A few operators with few options each; some tensors with views, several writers, or as outputs; capacities that pinch."""
    chance = random.Random(seed)
    tensors: list[Tensor] = []
    steps: list[Operator] = []

    def tensor(is_input: bool) -> int:
        number = len(tensors)
        rank = chance.randint(0, 2)
        shape = tuple(chance.randint(2, 4) for _ in range(rank))
        views = tuple(View(f"v{each}", chance.randint(1, 9)) for each in range(chance.choice([0, 0, 1])))
        size = chance.randint(2, 20)
        tensors.append(Tensor(name=f"t{number}", bytes=size, shape=shape, views=views, is_input=is_input))
        return number

    ready = [tensor(True) for _ in range(chance.randint(1, 2))]
    partly: list[int] = []
    for number in range(operators):
        reads = tuple(chance.choice(ready) for _ in range(chance.randint(0 if number == 0 else 1, 2)))
        if partly and chance.random() < 0.7:
            writes = (partly.pop(),)
            ready.append(writes[0])
        else:
            writes = tuple(tensor(False) for _ in range(chance.choice([1, 1, 1, 2])))
            if len(writes) == 1 and chance.random() < 0.25:
                partly.append(writes[0])
            else:
                ready.extend(writes)
        options = set()
        for _ in range(chance.randint(1, 3)):
            layouts = [chance.randrange(-1, tensors[each].rank + len(tensors[each].views)) for each in reads]
            options.add((*layouts, *(chance.randrange(-1, tensors[each].rank) for each in writes)))
        if writes[0] not in ready or any(writes[0] in step.writes for step in steps):
            # Whoever writes parts of a tensor can always agree on one bank.
            options.add((*(-1 for _ in reads), *(-1 for _ in writes)))
        read_bytes = tuple(chance.randint(0, tensors[each].bytes) for each in reads)
        steps.append(
            Operator(
                name=f"o{number}", op="op", reads=reads, read_bytes=read_bytes, writes=writes, options=tuple(sorted(options))
            )
        )
    outputs = {chance.randrange(len(tensors)), len(tensors) - 1}
    final = tuple(
        Tensor(
            name=each.name,
            bytes=each.bytes,
            shape=each.shape,
            views=each.views,
            is_input=each.is_input,
            is_output=number in outputs and any(number in step.writes for step in steps),
        )
        for number, each in enumerate(tensors)
    )
    return Problem(
        banks=4,
        capacity=chance.choice([10, 25, 40, 1000]),
        tensors=final,
        operators=tuple(steps),
        copy_weight=chance.choice([1, 1, 3]),
        off_chip_weight=chance.choice([1, 1, 2]),
        name=f"random {seed}",
    )


def every_plan(problem: Problem) -> Iterator[Plan]:
    """Every choice of options, own layouts and places, with the copies each needs and a stated objective of -1.

    Written without any of the package's code for plans.
    """
    count = len(problem.tensors)
    for options in product(*(range(len(each.options)) for each in problem.operators)):
        written: dict[int, int] = {}
        agree = True
        wanted: list[dict[int, int]] = [{} for _ in range(count)]
        for number, operator in enumerate(problem.operators):
            option = operator.options[options[number]]
            for at, tensor in enumerate(operator.reads):
                wanted[tensor].setdefault(option[at], number)
            for at, tensor in enumerate(operator.writes, len(operator.reads)):
                agree = agree and written.setdefault(tensor, option[at]) == option[at]
        if not agree:
            continue
        free = [
            [written[tensor]] if tensor in written else list(range(-1, len(problem.tensors[tensor].shape)))
            for tensor in range(count)
        ]
        for layouts in product(*free):
            for on_chip in product((False, True), repeat=count):
                copies = tuple(
                    BankCopy(tensor, layout, before)
                    for tensor in range(count)
                    if on_chip[tensor]
                    for layout, before in wanted[tensor].items()
                    if layout != layouts[tensor]
                )
                yield Plan(
                    problem=problem.digest,
                    objective=-1,
                    options=options,
                    layouts=layouts,
                    on_chip=on_chip,
                    copies=copies,
                )


def solve_milp(problem: Problem, solver: str) -> tuple[Outcome, Plan | None, int | None]:
    """What a solver says of the MILP of a problem, its plan, and its bound in weighted bytes."""
    built = milp.build(problem)
    outcome = solve(built.matrix, solver, time_limit=20)
    plan = None if outcome.values is None else built.extract(outcome.values)
    return outcome, plan, None if outcome.bound is None else built.bound(outcome.bound)
