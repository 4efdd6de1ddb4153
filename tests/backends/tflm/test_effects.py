"""Operators with effects, and those that may end an inference: the order never moves one past the other, and the check sees it.

The reference says what an inference leaves behind by going through the operators one by one: once for an inference that comes
to its end, and once for each operator that may end it. It shares nothing with the order and the check but the meaning of the
operators.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from stowplan.backends.tflm.check import faults
from stowplan.backends.tflm.order import predecessors
from stowplan.backends.tflm.planning import plan_model
from stowplan.backends.tflm.write import with_offsets, with_orders
from stowplan.frontends.tflite.model import TfliteModel, read_tflite
from stowplan.kernel.context import Options
from tests.backends.tflm.models import (
    ADD,
    CALL_ONCE,
    CONCATENATION,
    EMBEDDING_LOOKUP,
    IF,
    LESS,
    NEG,
    SUM,
    Graph,
    Step,
    number,
    real,
    save,
    stored,
    variable,
)
from tests.frontends.tflite.tflite_models import tensor

pytestmark = pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")

SVDF, FLOOR_DIV, GATHER_ND, RANDOM = 27, 90, 107, 148


class Deed(NamedTuple):
    """What an operator does beside computing its result: what it changes, and whether it may end the inference afterwards."""

    changes: tuple[str, ...] = ()
    ends: bool = False


def left_behind(deeds: list[Deed], order: tuple[int, ...]) -> list[dict[str, list[int]]]:
    """Who changed what, one after the other: in an inference that comes to its end, and in those that an operator ends."""
    scenarios = []
    for ending in (None, *(at for at, deed in enumerate(deeds) if deed.ends)):
        log: dict[str, list[int]] = {}
        for at in order:
            for what in deeds[at].changes:
                log.setdefault(what, []).append(at)
            if at == ending:
                break
        scenarios.append(log)
    return scenarios


def drawn(path: Path, chance: random.Random, steps: int) -> tuple[TfliteModel, list[Deed], list[set[int]]]:
    """A model of operators of all kinds; what each does, and which results each needs."""
    # An input, divisors and indices that are stored, two variables.
    tensors = [real(16), stored(1, 16, kind=0), stored(2, 1, 1), variable(16), variable(16), tensor([], 6), tensor([1, 1], 2)]
    inputs, operators, deeds, needs = [0, 5, 6], [], [], []
    values, writer = [0], {0: -1}
    for at in range(steps):
        source, extra = chance.choice(values), chance.choice(values)
        used = {writer[source]}
        match kind := chance.randrange(12):
            case 0 | 1:
                step, deed = Step(NEG, [source], [0]), Deed()
            case 2 | 3:
                step, deed = Step(SVDF, [source, 3 + kind % 2], [0]), Deed((f"variable {kind % 2}",))
            case 4:
                step, deed = Step(FLOOR_DIV, [source, extra], [0]), Deed((), ends=True)
                used.add(writer[extra])
            case 5:
                step, deed = Step(FLOOR_DIV, [source, 1], [0]), Deed()
            case 6:
                step, deed = Step(GATHER_ND, [source, chance.choice([2, 6])], [0]), Deed()
                deed = Deed((), ends=step.reads[1] == 6)
            case 7:
                name = chance.choice(["SignalDelay", "SignalWindow", "CIRCULAR_BUFFER"])
                step = Step(name, [source], [0])
                deed = Deed(() if name == "SignalWindow" else (f"state of {at}",), ends=name == "CIRCULAR_BUFFER")
            case 8:
                step, deed = Step("mine", [source], [0]), Deed(("anything",), ends=True)
            case 9:
                step, deed = Step(RANDOM, [source], [0]), Deed(("anything",))
            case _:
                # Subgraph 1 changes a variable of its own, subgraph 2 may end the inference.
                graph = 1 + kind % 2
                step = Step(IF, [5, source], [0], {0: number(graph), 1: number(graph)})
                deed = Deed(("inner",)) if graph == 1 else Deed((), ends=True)
        tensors.append(real(16))
        operators.append(step._replace(writes=[len(tensors) - 1]))
        values.append(len(tensors) - 1)
        writer[values[-1]] = at
        deeds.append(deed)
        needs.append(used - {-1})
    first = Graph([real(16), variable(16), real(16)], [0], [2], [Step(SVDF, [0, 1], [2])])
    second = Graph([real(16), real(16)], [0], [1], [Step(FLOOR_DIV, [0, 0], [1])])
    main = Graph(tensors, inputs, [at for at in values if at], operators)
    save(path, main, first, second, buffers=(bytes([0, 0, 128, 63] * 16), bytes(4)))
    return read_tflite(path), deeds, needs


def follows(order: tuple[int, ...], needs: list[set[int]]) -> bool:
    place = {at: to for to, at in enumerate(order)}
    return all(place[before] < place[at] for at, every in enumerate(needs) for before in every)


def orders(model: TfliteModel, deeds: list[Deed], needs: list[set[int]]) -> Iterator[tuple[tuple[int, ...], bool, bool]]:
    """Orders in which operators have their operands, whether the same is left behind, and whether the search may take it."""
    before, given = predecessors(model, 0), tuple(range(len(deeds)))
    for order in itertools.permutations(given):
        if follows(order, needs):
            yield order, left_behind(deeds, order) == left_behind(deeds, given), follows(order, before)


@pytest.mark.parametrize("seed", range(14))
def test_the_check_finds_every_order_that_leaves_something_else_behind_and_no_other(seed: int, tmp_path: Path) -> None:
    model, deeds, needs = drawn(tmp_path / "drawn.tflite", random.Random(seed), 5)
    apart = [64 * at if tensor.is_planned else -1 for at, tensor in enumerate(model.tensors)]
    for order, is_same, may_be_taken in orders(model, deeds, needs):
        found = faults(model.data, with_offsets(with_orders(model, {0: order}), apart), {})
        assert (found == []) == is_same, (order, found, deeds)
        # The search may be more careful than the check, never less.
        assert is_same or not may_be_taken, (order, deeds)


def test_the_models_that_are_drawn_have_orders_of_all_kinds(tmp_path: Path) -> None:
    counts: Counter[tuple[bool, bool]] = Counter()
    for seed in range(14):
        case = drawn(tmp_path / "drawn.tflite", random.Random(seed), 5)
        counts.update((is_same, may_be_taken) for _, is_same, may_be_taken in orders(*case))
    assert counts[False, False] > 200
    assert counts[True, True] > 100
    assert counts[True, False] < counts[True, True]


@pytest.mark.parametrize("seed", range(12))
def test_plans_of_models_with_effects_are_never_refused(seed: int, tmp_path: Path) -> None:
    model, deeds, _ = drawn(tmp_path / "drawn.tflite", random.Random(100 + seed), 9)
    scratch = [f"{at}=0" for at, operator in enumerate(model.subgraphs[0].operators) if operator.is_opaque]
    planned = plan_model(tmp_path / "drawn.tflite", scratch=scratch, options=Options(time_limit=0.3, deterministic=True))
    order = planned.summary.orders.get(0, tuple(range(len(deeds))))
    assert left_behind(deeds, order) == left_behind(deeds, tuple(range(len(deeds))))


def in_the_way(path: Path, barrier: Step, *more: Graph) -> Path:
    """A state that is updated first, and read last. It were better updated behind the barrier, where a large tensor is gone.

    Tensors 0 to 3 are inputs, 4 is the variable, 5 and 6 are the state's result and the barrier's, 11 and 12 are constants.
    """
    tensors = [real(4), real(64), tensor([4, 2], 2), tensor([], 6), variable(64), real(64), real(64)]
    tensors += [real(512), real(1), real(64), stored(1, 1), stored(2, 4, 2), stored(2, 64, kind=0)]
    inputs = [0, 1, 2, 3]
    if barrier.code in (EMBEDDING_LOOKUP, GATHER_ND):
        # Indices and rows of values that change, and such that are stored.
        tensors[6] = real(4, 16)
        tensors += [tensor([4], 2), real(4, 16), stored(2, 4), stored(2, 4, 16, kind=0)]
        inputs += [number for number in barrier.reads if number in (13, 14)]
    steps = [
        Step(SVDF, [0, 4], [5]),
        barrier._replace(writes=[6] if barrier.code != CALL_ONCE else []),
        Step(CONCATENATION, [6 if barrier.code != CALL_ONCE else 1] * 8, [7]),
        Step(SUM, [7, 10], [8]),
        Step(ADD, [5, 8], [9]),
    ]
    return save(path, Graph(tensors, inputs, [9], steps), *more, buffers=(bytes(4), bytes(256)))


_ENDING = Graph([real(64), real(64), real(64)], [0], [2], [Step(FLOOR_DIV, [0, 0], [1]), Step(NEG, [1], [2])])
_INNER = Graph(
    [real(64), tensor([64], 6), real(64)],
    [0],
    [2],
    [Step(LESS, [0, 0], [1]), Step(IF, [1, 0], [2], {0: number(2), 1: number(2)})],
)
_ALONE = Graph([stored(2, 64, kind=0), real(64), real(64)], [], [], [Step(NEG, [0], [1]), Step(FLOOR_DIV, [0, 1], [2])])
_PURE = Graph([real(64), real(64)], [0], [1], [Step(NEG, [0], [1])])

#: Steps that may end the inference, with the subgraphs that they run.
BARRIERS = {
    "CIRCULAR_BUFFER": (Step("CIRCULAR_BUFFER", [1], []),),
    "an unknown custom operator": (Step("mine", [1], []),),
    "TFLite_Detection_PostProcess": (Step("TFLite_Detection_PostProcess", [1, 12, 12], []),),
    "its anchors": (Step("TFLite_Detection_PostProcess", [12, 12, 1], []),),
    "EMBEDDING_LOOKUP": (Step(EMBEDDING_LOOKUP, [13, 16], []),),
    "GATHER": (Step(36, [12, 2], []),),
    "GATHER_ND": (Step(GATHER_ND, [16, 2], []),),
    "FLOOR_DIV": (Step(90, [12, 1], []),),
    "RSQRT": (Step(76, [1], []),),
    **{f"operator {code}": (Step(code, [12, 2], []),) for code in (40, 74, 82, 89, 140, 105, 128)},
    "IF": (Step(IF, [3, 1], [], {0: number(1), 1: number(2)}), _ENDING, _PURE),
    "IF in an IF": (Step(IF, [3, 1], [], {0: number(1), 1: number(1)}), _INNER, _ENDING),
    "CALL_ONCE": (Step(CALL_ONCE, [], [], {0: number(1)}), _ALONE),
}

#: The same where constants decide, and others that end none.
PASSABLE = {
    "a custom operator without effects": (Step("SignalWindow", [1], []),),
    "one with a state of its own": (Step("SignalDelay", [1], []),),
    "constant boxes": (Step("TFLite_Detection_PostProcess", [12, 1, 12], []),),
    "EMBEDDING_LOOKUP": (Step(EMBEDDING_LOOKUP, [15, 14], []),),
    "GATHER": (Step(36, [1, 11], []),),
    "GATHER_ND": (Step(GATHER_ND, [14, 11], []),),
    "FLOOR_DIV": (Step(90, [1, 12], []),),
    "RSQRT": (Step(76, [12], []),),
    **{f"operator {code}": (Step(code, [1, 10], []),) for code in (40, 74, 82, 89, 140, 105, 128)},
    "IF": (Step(IF, [3, 1], [], {0: number(1), 1: number(1)}), _PURE),
}

#: The order that needs less, and scratch memory: none.
_BEHIND, SCRATCH = (1, 2, 3, 0, 4), ("0=0", "1=0", "3=0")


@pytest.mark.parametrize("name", BARRIERS)
def test_a_state_stays_on_its_side_of_what_may_end_the_inference(name: str, tmp_path: Path) -> None:
    path = in_the_way(tmp_path / "model.tflite", *BARRIERS[name])
    planned = plan_model(path, scratch=SCRATCH)
    order = planned.summary.orders.get(0, (0, 1, 2, 3, 4))
    assert order.index(0) < order.index(1)
    moved = with_offsets(with_orders(planned.source, {0: _BEHIND}), [4096 * at for at in range(len(planned.source.tensors))])
    wrong = "an operator with effects runs on the other side of one that may end the inference"
    assert wrong in faults(planned.source.data, moved, {})


@pytest.mark.parametrize("name", PASSABLE)
def test_a_state_passes_what_ends_no_inference(name: str, tmp_path: Path) -> None:
    path = in_the_way(tmp_path / "model.tflite", *PASSABLE[name])
    kept, moved = (plan_model(path, scratch=SCRATCH, reorder=reorder).summary for reorder in (False, True))
    assert moved.head < kept.head
    assert moved.orders[0].index(0) > moved.orders[0].index(1)


def test_an_index_that_the_caller_keeps_may_still_change(tmp_path: Path) -> None:
    path = in_the_way(tmp_path / "model.tflite", *BARRIERS["GATHER"])
    planned = plan_model(path, scratch=SCRATCH, keep=[":2"])
    order = planned.summary.orders.get(0, (0, 1, 2, 3, 4))
    assert order.index(0) < order.index(1)


def test_two_pipelines_of_known_custom_operators_are_run_one_after_the_other(tmp_path: Path) -> None:
    tensors = [tensor([512], 7), tensor([512], 7), tensor([514], 7), tensor([514], 7), tensor([257], 15), tensor([257], 15)]
    tensors += [tensor([257], 15), real(1), tensor([257], 15), real(1), stored(1, 1)]
    steps = [Step("SignalRfft", [side], [2 + side]) for side in (0, 1)]
    steps += [Step("SignalEnergy", [2 + side], [4 + side]) for side in (0, 1)]
    for side in (0, 1):
        steps += [Step(NEG, [4 + side], [6 + 2 * side]), Step(SUM, [6 + 2 * side, 10], [7 + 2 * side])]
    path = save(tmp_path / "stereo.tflite", Graph(tensors, [0, 1], [7, 9], steps), buffers=(bytes(4),))
    kept, moved = (plan_model(path, reorder=reorder).summary for reorder in (False, True))
    assert moved.moved
    assert moved.head < kept.head
