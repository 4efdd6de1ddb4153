"""All plans that differ from a given one in one place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import msgspec

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem

HUGE = 2**63 - 1


def mutants(problem: Problem, plan: Plan) -> Iterator[tuple[str, Plan]]:
    """(what changed, plan) for every number changed, element dropped or doubled, and pair of elements swapped."""
    replace = msgspec.structs.replace
    for value in {plan.objective + change for change in (-1, 1, -HUGE, HUGE)} | {-plan.objective - 1, 10**30}:
        yield "objective", replace(plan, objective=value)
    for place in range(0, len(plan.problem), 7):
        other = "0" if plan.problem[place] != "0" else "1"
        yield "digest", replace(plan, problem=plan.problem[:place] + other + plan.problem[place + 1 :])
    yield "digest", replace(plan, problem="")
    for field in ("residencies", "copies", "fast_uses"):
        elements = getattr(plan, field)
        for what, changed in _list_mutants(elements):
            yield f"{field}: {what}", replace(plan, **{field: changed})
        for place, element in enumerate(elements):
            for what, changed in _element_mutants(problem, element):
                yield (
                    f"{field}[{place}]: {what}",
                    replace(plan, **{field: (*elements[:place], changed, *elements[place + 1 :])}),
                )
    for number in range(-1, problem.use_count + 1):
        if number not in plan.fast_uses:
            yield f"fast use {number} added", replace(plan, fast_uses=tuple(sorted([*plan.fast_uses, number])))


def _list_mutants(elements: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for place, element in enumerate(elements):
        yield f"{place} dropped", (*elements[:place], *elements[place + 1 :])
        yield f"{place} doubled", (*elements[:place], element, *elements[place:])
    for one, two in combinations(range(len(elements)), 2):
        swapped = list(elements)
        swapped[one], swapped[two] = elements[two], elements[one]
        yield f"{one} and {two} swapped", tuple(swapped)
        if isinstance(elements[one], msgspec.Struct):
            for name in elements[one].__struct_fields__:
                first, second = (getattr(elements[place], name) for place in (one, two))
                if first != second:
                    mixed = list(elements)
                    mixed[one] = msgspec.structs.replace(elements[one], **{name: second})
                    mixed[two] = msgspec.structs.replace(elements[two], **{name: first})
                    yield f"{name} of {one} and {two} swapped", tuple(mixed)


def _element_mutants(problem: Problem, element: Any) -> Iterator[tuple[str, Any]]:
    steps = {1, -1, problem.alignment, -problem.alignment, HUGE, -HUGE, 10**30}
    if isinstance(element, int):
        for step in sorted(steps):
            yield f"{step:+}", element + step
        return
    for name in element.__struct_fields__:
        value = getattr(element, name)
        if isinstance(value, bool):
            changed: list[Any] = [not value]
        elif name == "part":
            changed = [(0, 1), (0, HUGE), (1, 1), (-1, 1)]
            if value is not None:
                changed += [None, (value[0], value[1] + 1), (value[0] - 1, value[1]), (value[0] + 1, value[1])]
        elif isinstance(value, str):
            changed = ["out" if value == "in" else "in"]
        else:
            changed = [value + step for step in sorted(steps)]
        for other in changed:
            yield f"{name} {value} -> {other}", msgspec.structs.replace(element, **{name: other})
