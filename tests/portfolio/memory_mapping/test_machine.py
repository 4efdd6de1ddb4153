"""What compiled heuristics build: valid plans, consistent states, the same as interpreted."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stowplan.compiled import INTERPRET
from stowplan.portfolio.memory_mapping import arrays, machine
from stowplan.portfolio.memory_mapping.machine import new_state
from tests.models.memory_mapping.cases import random_problem
from tests.patience import HANG
from tests.portfolio.memory_mapping.states import assert_sound, built_states, wide_problem

#: Prints what heuristics and a search make of some problems.
_OBJECTIVES = """
import json, random
from stowplan.portfolio.memory_mapping import arrays
from stowplan.portfolio.memory_mapping.convert import export_best, export_plan
from tests.portfolio.memory_mapping.states import built_states, searched, wide_problem
found = []
for seed in range(6):
    problem = wide_problem(seed)
    data = arrays.build(problem)
    plans = [export_plan(problem, data, state) for state in built_states(problem)]
    state, search = searched(data, seed=seed, rounds=12, allowed=5.0)
    plans += [export_plan(problem, data, state), export_best(problem, data, search)]
    found.append([[plan.objective, str(plan.residencies), str(plan.copies), plan.fast_uses] for plan in plans])
print(json.dumps(found))
"""


@pytest.mark.parametrize("seed", range(60))
def test_heuristics_build_sound_states(seed: int) -> None:
    problem = random_problem(random.Random(seed)) if seed % 2 else wide_problem(seed)
    data = arrays.build(problem)
    for state in built_states(problem):
        assert_sound(problem, data, state)


def test_random_problems_cover_the_rules() -> None:
    """The tests here mean little if what they try never happens."""
    problems = [random_problem(random.Random(seed)) if seed % 2 else wide_problem(seed) for seed in range(60)]
    assert any(problem.loops for problem in problems)
    assert any(step.table for problem in problems for step in problem.steps)
    assert {problem.channels for problem in problems} >= {1, 2}
    assert {problem.stalls for problem in problems} == {"allowed", "forbidden"}
    assert {problem.alias_rule for problem in problems} == {"in_place", "uniform"}
    plans = [(problem, state) for problem in problems for state in built_states(problem)]
    assert any(state.totals[0].preloads for _, state in plans)
    assert any(state.totals[0].stalled for _, state in plans)
    assert any(slot.tensor >= 0 and slot.out_start >= 0 for _, state in plans for slot in state.slots)


def test_the_empty_state_is_all_slow() -> None:
    for seed in range(20):
        problem = wide_problem(seed)
        assert new_state(arrays.build(problem)).totals[0].total == problem.all_slow_ps


@pytest.mark.slow
def test_compiled_and_interpreted_agree() -> None:
    found = []
    for interpret in ("0", "1"):
        environment = {**os.environ, INTERPRET: interpret}
        done = subprocess.run(
            [sys.executable, "-c", _OBJECTIVES], env=environment, capture_output=True, text=True, check=True, timeout=HANG
        )
        found.append(json.loads(done.stdout))
    assert found[0] == found[1]


def test_crowded_windows() -> None:
    """Windows that have more residencies than they can list, and then fewer again."""
    code = (
        "from stowplan.portfolio.memory_mapping import space; space.ROOM = 3\n"
        "from stowplan.portfolio.memory_mapping import arrays\n"
        "from tests.portfolio.memory_mapping.states import assert_sound, searched, wide_problem\n"
        "crowds = []\n"
        "for seed in range(12):\n"
        "    data = arrays.build(problem := wide_problem(seed))\n"
        "    state, _ = searched(data, seed=seed, rounds=10, allowed=5.0)\n"
        "    assert_sound(problem, data, state)\n"
        "    crowds += [int(crowd) for crowd in state.window_counts]\n"
        "print(max(crowds))\n"
    )
    environment = {**os.environ, INTERPRET: "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 3


def test_the_machine_has_one_face() -> None:
    """What it consists of is imported by its own files alone; each knows only those before it."""
    parts = ["arrays", "state", "space", "timeline", "residencies", "machine"]
    folder = Path(machine.__file__).parent
    imported = re.compile(r"^from stowplan\.portfolio\.memory_mapping\.(\w+) import", re.MULTILINE)
    for path in folder.glob("*.py"):
        known = {*imported.findall(path.read_text(encoding="utf-8"))}
        if path.stem in parts:
            assert known <= {*parts[: parts.index(path.stem)]}, path.name
        else:
            assert not known & {"space", "timeline", "residencies"}, path.name
