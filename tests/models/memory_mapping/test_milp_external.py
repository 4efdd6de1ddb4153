"""The relaxation by any solver, and as a file: the same bound as from the built-in one."""

from __future__ import annotations

import random
from pathlib import Path

import highspy
import numpy as np
import pytest

from stowplan.errors import UsageError
from stowplan.models.memory_mapping.milp.external import bound_with
from stowplan.models.memory_mapping.milp.matrix import all_windows, formulate, linear_windows
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.problem import Stalls
from stowplan.models.mip.export import save
from stowplan.models.mip.with_highs import solve_relaxed
from tests.models.memory_mapping.brute_force import optimum
from tests.models.memory_mapping.cases import random_plan, random_problem
from tests.models.memory_mapping.relaxations import relaxation


@pytest.mark.parametrize("solver", ["gscip", "highs", "cbc"])
def test_all_solvers_prove_what_the_built_in_one_does(solver: str) -> None:
    for seed in range(8):
        rng = random.Random(seed)
        problem = random_problem(rng, steps=7, tensors=4)
        expected = relaxation(problem, integer=True)
        found = bound_with(problem, solver, plan=random_plan(problem, rng))
        assert found.optimal
        # Both take off what tolerances may amount to, which is less than a picosecond here.
        assert abs(found.bound_ps - expected.bound) <= 1


@pytest.mark.parametrize("stalls", ["forbidden", "allowed"])
@pytest.mark.parametrize("solver", ["gscip", "highs"])
def test_no_bound_exceeds_the_optimum(solver: str, stalls: Stalls) -> None:
    for seed in range(15):
        problem = random_problem(random.Random(seed), steps=5, tensors=3, stalls=stalls)
        assert bound_with(problem, solver).bound_ps <= optimum(problem)


def test_bounds_are_reported_as_they_rise() -> None:
    bounds: list[int] = []
    found = bound_with(random_problem(random.Random(3), steps=10, tensors=6), "gscip", on_bound=bounds.append)
    assert bounds == sorted(set(bounds))
    assert not bounds or bounds[-1] == found.bound_ps


def test_stopped_at_once_it_still_has_a_bound() -> None:
    problem = random_problem(random.Random(3), steps=10, tensors=6)
    found = bound_with(problem, "gscip", should_stop=lambda: True)
    assert found.bound_ps <= optimum(random_problem(random.Random(3), steps=10, tensors=6))
    assert not found.optimal


def test_a_solver_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="nobody"):
        bound_with(random_problem(random.Random(3)), "nobody")


def test_names_are_unique_and_say_tensor_and_step() -> None:
    for seed in range(25):
        problem = random_problem(random.Random(seed), loops=2 * (seed % 2))
        model = RelaxationModel(problem)
        matrix = formulate(model, all_windows(model)).matrix
        assert len(matrix.column_names) == len(set(matrix.column_names)) == matrix.columns
        assert len(matrix.row_names) == len(set(matrix.row_names)) == matrix.rows
        for accesses, sequence in zip(model.access, model.sequences, strict=True):
            for j, columns in enumerate(accesses):
                if columns.keep is not None:
                    step = sequence.accesses[j].step
                    expected = f"keep.t{sequence.tensor}.{problem.tensors[sequence.tensor].name}.s{step}"
                    assert matrix.column_names[columns.keep] == expected


def test_scaling_changes_units_and_nothing_else() -> None:
    """Every entry, side and cost is the model's own integer in other units."""
    for seed in range(25):
        model = RelaxationModel(random_problem(random.Random(seed)))
        found = formulate(model, all_windows(model))
        matrix, rows = found.matrix, found.rows
        own = found.integers.toarray()
        scaled = matrix.matrix.toarray() / np.where(found.row_scale, found.row_scale, 1)[:, None] / found.scale
        assert np.allclose(scaled, own, rtol=1e-12)
        assert np.allclose(matrix.cost * found.unit_ps / found.scale, model.cost, rtol=1e-12)
        finite = np.isfinite(matrix.row_upper)
        assert np.allclose((matrix.row_upper / found.row_scale)[finite], np.array(rows.upper)[finite], rtol=1e-12)
        assert np.all(np.array(rows.upper)[~finite] >= 1 << 62)


def test_linear_windows_are_those_the_linear_relaxation_needs() -> None:
    for seed in range(30):
        problem = random_problem(random.Random(seed), steps=8, tensors=5)
        model = RelaxationModel(problem)
        if not model.cost:
            continue
        found = formulate(model, linear_windows(model))
        solution = solve_relaxed(found.matrix, 0, 10, None)
        assert solution.value_valid
        optimum_ps = found.matrix.objective(np.array(solution.col_value)) * found.unit_ps
        assert optimum_ps == pytest.approx(relaxation(problem).bound, abs=1)


@pytest.mark.parametrize("ending", ["mps", "lp"])
def test_files_have_the_same_optimum(ending: str, tmp_path: Path) -> None:
    for seed in range(15):
        problem = random_problem(random.Random(seed), steps=7, tensors=4)
        model = RelaxationModel(problem)
        if not model.cost:
            continue
        found = formulate(model, all_windows(model))
        path = tmp_path / f"model.{ending}"
        save(found.matrix, path)
        highs = highspy.Highs()
        highs.silent()
        assert highs.readModel(str(path)) == highspy.HighsStatus.kOk
        highs.setOptionValue("mip_rel_gap", 0.0)
        highs.run()
        expected = relaxation(problem, integer=True)
        assert expected.optimal
        assert found.bound_ps(highs.getObjectiveValue()) == pytest.approx(expected.bound, abs=1)
