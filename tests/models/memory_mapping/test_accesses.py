"""Where residencies and copies may begin and end, on programs small enough to see it."""

from __future__ import annotations

import pytest

from stowplan.models.memory_mapping.accesses import Boundaries, TensorAccesses, access_sequences
from stowplan.models.memory_mapping.problem import Loop, Piece, Problem, Step, Tensor, Use


def program(
    horizon: int, uses: dict[int, str], *, loops: tuple[Loop, ...] = (), is_input: bool = False, is_output: bool = False
) -> TensorAccesses:
    """Accesses of one tensor; ``uses`` maps steps to "r", "w" or "rw"."""
    steps = tuple(
        Step(
            name=f"s{step}",
            opcode="test",
            weight=1,
            uses=tuple(Use(0, role == "w", 1) for role in uses.get(step, "")),
            pieces=(Piece(1, (0,) * len(uses.get(step, "")), (0,) * len(uses.get(step, ""))),),
        )
        for step in range(horizon)
    )
    tensor = Tensor("t", 1, 1, 1, is_input=is_input, is_output=is_output)
    problem = Problem(
        name="p", target="none", cost_model="test", capacity=1, steps=steps, tensors=(tensor,), loops=loops
    )  # fmt: skip
    return access_sequences(problem)[0]


def test_accesses_are_numbered_by_step_with_both_uses_of_an_in_place_step() -> None:
    sequence = program(4, {0: "w", 1: "rw", 3: "r"})
    assert [(access.step, access.read, access.write) for access in sequence.accesses] == [(0, None, 0), (1, 1, 2), (3, 3, None)]
    assert sequence.last_write == (-1, 0, 1, 1)
    assert [sequence.gap(j) for j in range(4)] == [(0, 0), (1, 1), (2, 3), (4, 4)]


def test_boundaries_inside_a_loop_are_not_free() -> None:
    boundaries = Boundaries(6, [Loop(1, 4, 2), Loop(4, 5, 2)])
    assert boundaries.free.tolist() == [True, True, False, False, True, True, True]
    assert boundaries.next.tolist() == [0, 1, 4, 4, 4, 5, 6]
    assert boundaries.prev.tolist() == [0, 1, 1, 1, 4, 5, 6]


def test_a_tensor_from_outside_is_glued_inside_the_loop_and_copied_around_it() -> None:
    sequence = program(6, {0: "r", 2: "r", 3: "r", 5: "r"}, loops=(Loop(1, 4, 3),), is_input=True)
    assert [sequence.is_glued(j) for j in range(5)] == [False, False, True, False, False]
    assert sequence.copy_in_window(1) == (1, 1)
    assert sequence.copy_in_window(2) is None
    assert sequence.copy_in_window(3) == (4, 5)
    assert sequence.copy_in_window(3, in_flight=True) == (0, 5)


def test_a_tensor_internal_to_a_loop_is_bound_by_the_loops_inside_it_only_and_never_copied() -> None:
    sequence = program(8, {1: "w", 3: "r", 4: "r", 6: "r"}, loops=(Loop(0, 7, 2), Loop(2, 5, 2)))
    assert not sequence.may_copy
    assert [sequence.is_glued(j) for j in range(5)] == [False, False, True, False, False]
    assert sequence.residency.free.tolist() == [True, True, True, False, False, True, True, True, True]
    assert sequence.copy_in_window(1) is None


@pytest.mark.parametrize(("is_output", "may_copy"), [(False, False), (True, True)])
def test_a_program_output_is_outside_of_every_loop(is_output: bool, may_copy: bool) -> None:
    assert program(3, {0: "w", 1: "r"}, loops=(Loop(0, 3, 2),), is_output=is_output).may_copy == may_copy


def test_a_gap_before_a_pure_write_is_dead_unless_the_write_lies_inside_a_loop() -> None:
    sequence = program(5, {0: "w", 2: "w", 3: "r"})
    assert [sequence.is_dead(j) for j in range(4)] == [True, True, False, True]
    inside = program(5, {0: "w", 2: "w", 4: "r"}, loops=(Loop(1, 4, 2),))
    assert not inside.is_dead(1)
    # The residency must cover the loop from its head, so the old content comes along, whatever it is worth.
    assert inside.copy_in_window(1) == (1, 1)


def test_uses_of_a_tensor_written_in_a_loop_are_tied() -> None:
    loop = (Loop(1, 4, 2),)
    assert program(5, {0: "w", 2: "rw", 3: "r"}, loops=loop).is_tied(2)
    assert not program(5, {0: "w", 2: "r", 3: "r"}, loops=loop).is_tied(2)


def test_a_copy_out_may_start_right_after_the_write_and_pass_over_reads() -> None:
    sequence = program(6, {1: "w", 3: "r", 4: "r"})
    assert sequence.copy_out_window(1) == (2, 3)
    assert sequence.copy_out_window(2) == (2, 4)
    assert sequence.copy_out_window(3) == (2, 6)
