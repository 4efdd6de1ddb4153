"""``stowplan verify`` accepts what ``solve`` wrote, and no change to it that matters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stowplan
from stowplan.certificates.maker import certify
from stowplan.errors import InputError
from stowplan.frontends.read import read_plan
from stowplan.hardware.simulator import simulate
from stowplan.models.memory_mapping import plan as plans
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.models.packing import problem as packing
from stowplan.models.packing.plan import make_plan
from stowplan.models.packing.problem import Buffer, Penalty
from tests.cli.conftest import ALEXNET, EXAMPLES, Cli, Outcome, Solved, error_line
from tests.models.memory_mapping import reference

Way = tuple[str | int, ...]
"""To a place in a JSON value."""


def rejection(outcome: Outcome, path: Path) -> list[str]:
    """The violations of a plan that was rejected, from standard output. The line on standard error only counts them."""
    assert outcome.code == 4, outcome
    violations = outcome.out.splitlines()
    found = "1 violation" if len(violations) == 1 else f"{len(violations)} violations"
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"stowplan: {path}: not a valid plan: found {found}, expected none")
    assert not any(violation in line for violation in violations)
    return violations


def numbers(value: Any, path: Way = ()) -> Iterator[tuple[Way, int]]:
    """Every number in a JSON value, with the way to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers(inner, (*path, index))
    elif isinstance(value, int) and not isinstance(value, bool):
        yield path, value


def changed(value: Any, path: Way, new: object) -> Any:
    """A copy of a JSON value with one place in it set."""
    copy = json.loads(json.dumps(value))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    return copy


def write(path: Path, value: object) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_accepts_what_solve_wrote(cli: Cli, solved: Solved) -> None:
    for arguments in ((solved.problem_file,), (ALEXNET, "--target", "teaching"), (ALEXNET,)):
        outcome = cli("verify", *arguments, solved.plan_file)
        assert outcome == (0, f"valid: 25.42 ms ({solved.plan.objective} ps)\n", "")
    outcome = cli("verify", solved.problem_file, solved.plan_file, "--json")
    assert json.loads(outcome.out) == {"ok": True, "objective": solved.plan.objective, "violations": []}
    assert (outcome.code, outcome.err) == (0, "")


def test_another_problem(cli: Cli, solved: Solved) -> None:
    for arguments in (
        (EXAMPLES / "lstm_scan_inf_b32.hlo.txt.gz",),
        (ALEXNET, "--target", "tpu-v4"),
        (ALEXNET, "--capacity", 2**21),
        (solved.problem_file, "--capacity", 4096),
        (solved.problem_file, "--set", "stalls=forbidden"),
    ):
        (line,) = rejection(cli("verify", *arguments, solved.plan_file), solved.plan_file)
        assert line.startswith("wrong_problem: found digest ")
        outcome = cli("show", solved.plan_file, *arguments)
        assert error_line(outcome).startswith(f"stowplan: {solved.plan_file}: plan: found a plan for problem ")


def test_overlap(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    """Two residencies that share a step, put into one place."""
    values = json.loads(solved.plan_file.read_text())
    first, second = next(
        (one, two)
        for one, left in enumerate(values["residencies"])
        for two, right in enumerate(values["residencies"])
        if one < two and left["start"] < right["end"] and right["start"] < left["end"] and left["offset"] != right["offset"]
    )
    spoilt = changed(values, ("residencies", second, "offset"), values["residencies"][first]["offset"])
    path = write(tmp_path / "plan.json", spoilt)
    assert any(line.startswith("overlap: ") for line in rejection(cli("verify", solved.problem_file, path), path))
    outcome = cli("verify", solved.problem_file, path, "--json")
    found = json.loads(outcome.out)
    assert outcome.code == 4
    assert not found["ok"]
    assert any(each.startswith("overlap: ") for each in found["violations"])


@pytest.mark.parametrize(("offset", "pairs"), [(15, ["a and b"]), (5, ["a and b", "a and c", "b and c"])])
def test_each_violation_is_printed_once(cli: Cli, tmp_path: Path, offset: int, pairs: list[str]) -> None:
    buffers, plan = tmp_path / "buffers.csv", tmp_path / "plan.csv"
    buffers.write_text("id,lower,upper,size\na,0,4,10\nb,2,6,10\nc,2,8,4\n")
    plan.write_text(f"id,lower,upper,size,offset\na,0,4,10,0\nb,2,6,10,5\nc,2,8,4,{offset}\n")
    expected = [f"overlap: buffers {pair} share bytes at time 2" for pair in pairs]
    assert sorted(rejection(cli("verify", buffers, plan), plan)) == expected
    outcome = cli("verify", buffers, plan, "--json")
    assert sorted(json.loads(outcome.out)["violations"]) == expected
    assert "overlap" not in outcome.err


def test_reuse_penalties_are_a_cost_and_no_bytes(cli: Cli, tmp_path: Path) -> None:
    a, b = (Buffer(id=name, lower=lower, upper=lower + 1, size=4) for lower, name in enumerate("ab"))
    problem = packing.Problem(buffers=(a, b), capacity=4, penalties=(Penalty(first="a", second="b", cost=5),))
    problem.save(tmp_path / "problem.json")
    make_plan(problem, (0, 0)).save(tmp_path / "plan.json")
    certify(problem, bound=5).save(tmp_path / "proof.json")
    outcome = cli("verify", tmp_path / "problem.json", tmp_path / "plan.json", "--bound", tmp_path / "proof.json")
    assert outcome.out.splitlines() == [
        "valid: 5 cost, within the capacity of 4 bytes",
        "proven bound: 5 cost, by crowds: within 0.00% of the optimum",
    ]


def in_units(problem: Problem, plan: Plan) -> tuple[Problem, Plan]:
    """Problem and plan with memory counted in units of the alignment, for a reference that looks at every unit of it.

    Sizes are rounded up: offsets are multiples of the unit, so that two tensors meet in bytes just where they meet in units.
    """
    unit = problem.alignment
    assert problem.capacity % unit == 0
    tensors = tuple(msgspec.structs.replace(tensor, size=-(-tensor.size // unit)) for tensor in problem.tensors)
    small = msgspec.structs.replace(problem, alignment=1, capacity=problem.capacity // unit, tensors=tensors)
    moved = []
    for residency in plan.residencies:
        assert residency.offset % unit == 0
        moved.append(msgspec.structs.replace(residency, offset=residency.offset // unit))
    return small, msgspec.structs.replace(plan, problem=small.digest, residencies=tuple(moved))


def free_beside(problem: Problem, plan: Plan, number: int) -> bool:
    """Whether no other residency meets this one, painted step by step and byte range by byte range."""
    mine = plan.residencies[number]
    low, high = mine.offset, mine.offset + problem.tensors[mine.tensor].size
    return low >= 0 and high <= problem.capacity and all(
        step not in range(other.start, other.end)
        or other.offset >= high
        or other.offset + problem.tensors[other.tensor].size <= low
        for step in range(mine.start, mine.end)
        for index, other in enumerate(plan.residencies)
        if index != number
    )  # fmt: skip


def assert_harmless(problem: Problem, before: Plan, after: Plan, path: Way) -> None:
    """A changed number that verification accepts must be of a kind that changes nothing for the program, and provably so.

    * ``residencies.offset``: the tensor stands elsewhere, in bytes that nothing else has during those steps.
    * ``residencies.end``, later: it keeps its place after its last use, and nobody else wants it then.
    * ``copies.end``, earlier: the step before waits for the copy already, which was complete then or would have been waited for
      anyhow; the simulated run takes as long as before.

    Nothing else is harmless: a residency starts with what fills it, every use is fast or slow for good, copies start with
    the residency they fill, and a tensor's number, the objective and the version say just one thing each.
    """
    table, number, field = path
    assert isinstance(number, int)
    if table == "residencies":
        old, new = before.residencies[number], after.residencies[number]
        assert field == "offset" or (field == "end" and new.end > old.end)
        assert free_beside(problem, after, number)
    else:
        assert (table, field) == ("copies", "end")
        assert before.copies[number].start <= after.copies[number].end < before.copies[number].end
    assert simulate(problem, after).total_ps == before.objective
    assert reference.is_valid(*in_units(problem, after))


@pytest.mark.slow
def test_no_number_can_be_spoilt(solved: Solved) -> None:
    problem: Problem = solved.problem
    unit = problem.alignment
    values = json.loads(solved.plan_file.read_text())
    places = list(numbers(values))
    fields = {tuple(key for key in path if isinstance(key, str)) for path, _ in places}
    assert fields >= {("objective_ps",), ("fast_uses",), ("version",), ("residencies", "offset"), ("copies", "end")}
    assert len(places) > 150
    rejected: dict[Way, int] = {}
    accepted = 0
    for path, old in places:
        for new in {old + 1, old - 1, old + unit, old - unit, 2 * old, -1} - {old}:
            try:
                plan = plans.Plan.decode(json.dumps(changed(values, path, new)).encode())
            except InputError:
                assert path == ("version",)
                continue
            if verify(problem, plan).ok:
                accepted += 1
                assert_harmless(problem, solved.plan, plan, path)
            else:
                rejected[path] = rejected.get(path, 0) + 1
    # For every number there is a change that matters; and the harmless ones are few.
    assert {path for path, _ in places} - rejected.keys() == {("version",)}
    assert accepted < sum(rejected.values()) / 10


def test_numbers_that_are_not_whole(solved: Solved) -> None:
    values = json.loads(solved.plan_file.read_text())
    for path, old in numbers(values):
        for new in (old + 0.5, str(old), None, [old], True):
            with pytest.raises(InputError):
                plans.Plan.decode(json.dumps(changed(values, path, new)).encode())


def test_spoilt_files_on_the_command_line(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    """The command says what the verifier says; by samples, since the verifier was asked about all of them."""
    values = json.loads(solved.plan_file.read_text())
    for path, old in list(numbers(values))[::9]:
        for new in (old - 1, old + 1):
            file = write(tmp_path / "plan.json", changed(values, path, new))
            outcome = cli("verify", solved.problem_file, file)
            if path == ("version",):
                assert "version: found version" in error_line(outcome)
            elif verify(solved.problem, read_plan(file)).ok:
                assert outcome.code == 0
            else:
                rejection(outcome, file)


@pytest.mark.parametrize("table", ["residencies", "copies", "fast_uses"])
def test_no_entry_can_be_left_out_or_doubled(solved: Solved, table: str) -> None:
    values = json.loads(solved.plan_file.read_text())
    for number, entry in enumerate(values[table]):
        rest = values[table][:number] + values[table][number + 1 :]
        doubled = [*values[table][:number], entry, entry, *values[table][number + 1 :]]
        for entries in (rest, doubled):
            plan = plans.Plan.decode(json.dumps({**values, table: entries}).encode())
            assert not verify(solved.problem, plan).ok, (table, number)


def test_words_and_signs(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    values = json.loads(solved.plan_file.read_text())
    flipped = [(("residencies", n, "preloaded"), not each["preloaded"]) for n, each in enumerate(values["residencies"])]
    flipped += [
        (("copies", n, "direction"), "out" if each["direction"] == "in" else "in") for n, each in enumerate(values["copies"])
    ]
    digest = values["problem"]
    flipped += [(("problem",), digest[:-1] + ("0" if digest[-1] != "0" else "1")), (("problem",), digest.upper())]
    for path, new in flipped:
        plan = plans.Plan.decode(json.dumps(changed(values, path, new)).encode())
        assert not verify(solved.problem, plan).ok, path
    # A plan that does not say what it is for is for nothing.
    path = write(tmp_path / "p.json", {**values, "problem": ""})
    (line,) = rejection(cli("verify", solved.problem_file, path), path)
    assert line.startswith("wrong_problem: ")
    # Names are for people; the numbers decide.
    free = {**values, "program": "anything", "target": "any", "names": {}}
    assert cli("verify", solved.problem_file, write(tmp_path / "plan.json", free)).code == 0


def test_other_files_of_ours(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    values = json.loads(solved.plan_file.read_text())
    first = {**values["residencies"][0], "colour": "red"}
    for spoilt, expected in (
        ({**values, "colour": "red"}, "unknown field `colour`"),
        ({**values, "residencies": [first]}, "residencies[0]: Object contains unknown field `colour`"),
        ({**values, "version": 2}, "version: found version 2, expected 1"),
        ({**values, "format": "stowplan.other.plan"}, "found format 'stowplan.other.plan', expected a plan: stowplan."),
        ({key: value for key, value in values.items() if key != "format"}, "a JSON object without a format"),
        ({key: value for key, value in values.items() if key != "objective_ps"}, "missing required field `objective_ps`"),
        ({**values, "copies": 7}, "copies: Expected `array`, got `int`"),
        ([values], "no JSON object"),
    ):
        line = error_line(cli("verify", solved.problem_file, write(tmp_path / "plan.json", spoilt)))
        assert line.startswith(f"stowplan: {tmp_path / 'plan.json'}: "), line
        assert expected in line


def test_gzip_and_library_agree(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    import gzip

    packed = tmp_path / "plan.json.gz"
    packed.write_bytes(gzip.compress(solved.plan_file.read_bytes()))
    assert cli("verify", solved.problem_file, packed).code == 0
    assert read_plan(packed) == solved.plan
    assert stowplan.read(solved.problem_file) == solved.problem
