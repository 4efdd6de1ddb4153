"""Mutated plans of every kind before verifier and oracle:

    python -m benchmarks.attacks.plan_mutants --count 100000 --seed 1

A small random problem, a valid plan of it, and one to three changes in what the plan decides or says; half of them state the
objective that the changed plan has. The verifier must accept a mutant exactly where the oracle of the kind does
(``tests/models/oracles.py``). Prints mutants, those accepted and those on which the two differ, by kind; ends with 1 if any do.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from stowplan.errors import InputError
from stowplan.kernel.kind import kind as kind_named
from tests.models.bank_mapping import cases as bank_cases
from tests.models.banked_packing import cases as banked_cases
from tests.models.llm_placement import cases as llm_cases
from tests.models.memory_mapping import cases as mapping_cases
from tests.models.modulo_scheduling import cases as modulo_cases
from tests.models.operator_order import cases as order_cases
from tests.models.oracles import ORACLES
from tests.models.packing import cases as packing_cases
from tests.models.rematerialization import cases as remat_cases
from tests.models.tier_placement import cases as tier_cases

#: Mutants of one plan.
OF_A_PLAN = 50
#: What numbers are changed by; a byte of memory is a cell of an oracle, so that they are small.
STEPS = (1, -1, 2, -2, 3, -4, 8, -8, 16, 64)

MAKERS: dict[str, Callable[[int], Any]] = {
    "memory_mapping": lambda seed: mapping_cases.random_problem(random.Random(seed)),
    "packing": packing_cases.random_problem,
    "banked_packing": banked_cases.random_problem,
    "operator_order": order_cases.random_problem,
    "tier_placement": lambda seed: tier_cases.random_problem(seed, address_spaces=seed % 2 == 0),
    "bank_mapping": bank_cases.random_problem,
    "modulo_scheduling": modulo_cases.varied_problem,
    "rematerialization": remat_cases.limited,
    "llm_placement": llm_cases.random_problem,
}

#: Fields of plans that are for people; a change in them changes nothing.
FOR_PEOPLE = {"name", "target", "program", "names", "buffers", "memory", "tiers", "layers", "instructions", "format", "version"}


def plans_of(kind: str, problem: Any, chance: random.Random) -> Iterator[Any]:
    """Valid plans of a problem; none where none is found at once."""
    if kind == "memory_mapping":
        yield mapping_cases.random_plan(problem, chance)
        return
    if kind == "modulo_scheduling":
        from stowplan.models.modulo_scheduling.cpsat.solve import solve

        plan = solve(problem, time_limit=10.0).plan
    else:
        plan = next(iter(kind_named(kind).initial(problem).values()), None)
    if plan is not None:
        yield plan


def changed(value: Any, chance: random.Random) -> Any:
    """A value of a plan with something in it changed."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + chance.choice(STEPS)
    if value is None:
        return 0
    if isinstance(value, str):
        return {"in": "out", "out": "in"}.get(value, value[1:])
    if isinstance(value, msgspec.Struct):
        name = chance.choice(value.__struct_fields__)
        return msgspec.structs.replace(value, **{name: changed(getattr(value, name), chance)})
    elements = list(value)
    if not elements:
        return (0,) if chance.random() < 0.5 else value
    at, other, way = chance.randrange(len(elements)), chance.randrange(len(elements)), chance.random()
    if way < 0.6:
        elements[at] = changed(elements[at], chance)
    elif way < 0.8:
        elements[at], elements[other] = elements[other], elements[at]
    elif way < 0.9:
        del elements[at]
    else:
        elements.insert(at, elements[other])
    return tuple(elements)


def mutant_of(plan: Any, chance: random.Random) -> Any:
    """The plan with one to three changes, as a file of it would be read: what no file can say is changed again."""
    fields = [name for name in plan.__struct_fields__ if name not in FOR_PEOPLE and getattr(plan, name) is not msgspec.UNSET]
    while True:
        mutant = plan
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            name = chance.choice(fields)
            mutant = msgspec.structs.replace(mutant, **{name: changed(getattr(mutant, name), chance)})
        try:
            return type(plan).decode(msgspec.json.encode(mutant))
        except InputError:
            continue


def is_whole(problem: Any, mutant: Any, plan: Any) -> bool:
    """Whether a mutant has the lengths and the digest that the oracles take for granted."""
    if mutant.problem != problem.digest:
        return False
    free = {"residencies", "copies", "fast_uses", "starts", "sequence", "weight_offsets", "output_offsets"}
    names = [
        name for name in plan.__struct_fields__ if isinstance(getattr(plan, name), tuple) and name not in free | FOR_PEOPLE
    ]
    return all(len(getattr(mutant, name)) == len(getattr(plan, name)) for name in names)


def restated(plan: Any, found: Any) -> Any:
    """The plan with what it says of itself as the verifier recomputes it, as far as it does."""
    told = {"objective": found.objective, **found.figures}
    known = {name: value for name, value in told.items() if value is not None and hasattr(plan, name)}
    return msgspec.structs.replace(plan, **known)


def compare(kind: str, count: int, seed: int, tell: Callable[[str], None]) -> tuple[int, int, int]:
    """Mutants, those accepted, and those on which verifier and oracle differ."""
    chance, verify = random.Random(f"{seed} {kind}"), kind_named(kind).verify
    made = accepted = differing = 0
    while made < count:
        number = chance.randrange(10**6)
        problem = MAKERS[kind](number)
        for plan in plans_of(kind, problem, chance):
            for _ in range(min(OF_A_PLAN, count - made)):
                mutant = mutant_of(plan, chance)
                whole = is_whole(problem, mutant, plan)
                if whole and chance.random() < 0.5:
                    mutant = restated(mutant, verify(problem, mutant))
                said = bool(verify(problem, mutant).ok)
                expected = whole and ORACLES[kind](problem, mutant)
                made, accepted, differing = made + 1, accepted + said, differing + (said != expected)
                if said != expected:
                    tell(
                        f"{kind}, problem {number}: verifier {said}, oracle {expected}: {msgspec.json.encode(mutant).decode()}"
                    )
    return made, accepted, differing


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=7_000, help="mutants in all, the same number of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(MAKERS), help="separated by commas; all by default")
    arguments = parser.parse_args()
    names = arguments.kinds.split(",")
    if unknown := [name for name in names if name not in MAKERS]:
        parser.error(f"found the kind {unknown[0]!r}, expected some of {', '.join(MAKERS)}")
    print("| kind | mutants | accepted | differing | seconds |\n|---|--:|--:|--:|--:|")
    rows = []
    for name in names:
        began = time.monotonic()
        rows.append(compare(name, -(-arguments.count // len(names)), arguments.seed, lambda text: print(text, file=sys.stderr)))
        print(f"| {name.replace('_', ' ')} | {' | '.join(map(str, rows[-1]))} | {time.monotonic() - began:.0f} |", flush=True)
    total = [sum(column) for column in zip(*rows, strict=True)]
    print(f"| all | {' | '.join(map(str, total))} | |")
    sys.exit(1 if total[2] else 0)


if __name__ == "__main__":
    main()
