"""The plan of a graph within rooms beside the least of all plans, by trying every sequence."""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import count
from types import SimpleNamespace

import msgspec
import pytest

from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.torch.allowance import Allowance, PhaseLimit, footprint, with_reservations
from stowplan.backends.torch.planning import Chooser, Settings
from stowplan.backends.torch.reader import Reading
from stowplan.models.rematerialization.problem import Op, Problem, Tensor
from stowplan.models.rematerialization.structure import build
from tests.backends.torch.training import torch  # noqa: F401  skips without torch
from tests.models.rematerialization.cases import least_cost


def joint(seed: int) -> Reading:
    """Forward operators, the border, and backward ones; inputs are one tensor that stays."""
    chance = random.Random(seed)
    tensors, ops = [Tensor(id="inputs", size=chance.randint(0, 2))], []

    def add(name: str, reads: list[int], size: int, cost: int) -> int:
        tensors.append(Tensor(id=name, size=size))
        once = name == "border" or chance.random() < 0.05
        ops.append(Op(id=name, reads=tuple(dict.fromkeys(reads)), writes=(len(tensors) - 1,), cost=cost, once=once))
        return len(tensors) - 1

    made = [0]
    for number in range(chance.randint(2, 3)):
        reads = [made[-1], *chance.sample(made, chance.random() < 0.3)]
        made.append(add(f"forward {number}", reads, chance.randint(1, 6), chance.randint(0, 4)))
    border = len(ops)
    gradient = add("border", [made[-1]], chance.randint(1, 2), 0)
    outputs = [0, made[-1], gradient]
    for number in reversed(range(1, len(made))):
        reads = [gradient, made[number - 1], *([made[number]] if chance.random() < 0.4 else [])]
        if chance.random() < 0.4:
            outputs.append(add(f"weight {number}", reads, chance.randint(1, 4), chance.randint(0, 4)))
        gradient = add(f"backward {number}", reads, chance.randint(1, 3), chance.randint(0, 4))
    reading = Reading(graph=None, forward_outputs=[], backward_outputs=[])
    reading.problem = Problem(
        tensors=tuple(tensors),
        ops=tuple(ops),
        inputs=(0,),
        outputs=tuple(dict.fromkeys((*outputs, gradient))),
        free_inputs=False,
    )
    reading.border, reading.tangents = border, [SimpleNamespace(name="border")]
    reading.nodes, reading.flops = [None] * len(ops), [op.cost for op in ops]
    return reading


def allowance_of(reading: Reading, seed: int) -> Allowance:
    """Rooms in which what is kept counts several times."""
    chance, problem = random.Random(100 + seed), reading.problem
    structure = build(problem)
    given = footprint(reading, structure.made(structure.order))
    waiting = chance.choice([0, 1, 3])
    constant = sum(problem.tensors[tensor].size for tensor in (0, problem.ops[reading.border].writes[0]))
    most = max(given.forward, given.backward) + waiting * (given.at_border - constant)
    least = max(2, most // 2)
    left = chance.randint(least, most)
    rows = [
        PhaseLimit(waiting, True, False, left),
        PhaseLimit(waiting, True, True, left),
        PhaseLimit(0, True, True, left - chance.randint(0, 2)),
    ]
    if seed % 3 == 0:
        rows.append(PhaseLimit(waiting + 1, False, False, chance.randint(0, (waiting + 1) * given.at_border)))
    return Allowance(most, constant, tuple(rows))


def check(seed: int) -> str:
    """Compare with brute force: the plan adds no less, the bound is no more, and what is proven is so."""
    reading = joint(seed)
    allowance = allowance_of(reading, seed)
    limited_reading = with_reservations(reading, allowance)
    least = least_cost(msgspec.structs.replace(limited_reading.problem, limit=allowance.limit))
    settings = Settings(allowance.limit, time_limit=5.0, workers=1)
    chooser = Chooser(limited_reading, allowance.limit, settings, None, lambda _: iter(()), 0.0, time.monotonic())
    try:
        choice = chooser.choose(keep_stock=False)
    except MemoryLimitError as error:
        assert least is None, seed
        return "proven" if "proven" in str(error) else "none"
    assert least is not None, seed
    cost, bound = choice.report.added_cost, choice.report.bound or 0
    takes = footprint(reading, choice.plan)
    assert allowance.peak(takes) == choice.report.peak <= allowance.limit, seed
    assert bound <= least <= cost == choice.plan.objective, seed
    return "free" if not least else "optimal" if cost == least else "above"


def test_what_is_reserved_is_what_a_step_takes_besides() -> None:
    """Of any plan the peak of the problem with reservations is that of a step."""
    for seed in range(60):
        reading = joint(seed)
        allowance, structure = allowance_of(reading, seed), build(reading.problem)
        plan = structure.made(structure.order)
        besides = build(with_reservations(reading, allowance).problem).made(structure.order)
        assert besides.peak == max(plan.peak, allowance.peak(footprint(reading, plan))), seed


def test_plans_and_bounds_on_some_graphs() -> None:
    assert {check(seed) for seed in (0, 1, 3, 5, 12, 14)} >= {"optimal", "proven"}


@pytest.mark.slow
def test_plans_and_bounds_on_many_graphs() -> None:
    seen = Counter(check(seed) for seed in range(12, 72))
    assert seen["optimal"] > 10 * seen["above"]
    assert seen["proven"] > seen["none"]


def test_plans_of_the_first_steps_do_not_depend_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the time is over sooner, and the least memory of a training step must not change with that."""

    def plans() -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for seed in range(30):
            reading = joint(seed)
            chooser = Chooser(reading, 1 << 40, Settings(1 << 40, time_limit=5.0), None, lambda _: iter(()), 0.0, 0.0)
            found += [chooser.choose_for_first_steps(enough).plan.sequence for enough in (0, 1, 9)]
        return found

    idle = plans()
    assert any(len(sequence) > len({*sequence}) for sequence in idle)
    moments = count(step=1000.0)
    for module in ("stowplan.backends.torch.planning", "stowplan.portfolio.rematerialization.peaks"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: next(moments)))
    assert plans() == idle
