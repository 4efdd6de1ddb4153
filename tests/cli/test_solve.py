"""``stowplan solve``: files, streams, exit codes, limits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

import stowplan
from stowplan.cli import solve
from stowplan.frontends.read import read_plan
from stowplan.kernel.workers.messages import CandidateId
from stowplan.kernel.workers.warm import WarmWorkers
from stowplan.models.memory_mapping.hint import counts, hint, of_plan
from stowplan.models.memory_mapping.plan import Plan
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan
from tests.cli.conftest import ALEXNET, BRIEF, EXAMPLES, Cli, Solved, error_line
from tests.paths import DATA
from tests.patience import HANG

#: What stands in a result, and so in its JSON.
FIELDS = {
    "plan", "objective", "bound", "gap", "status", "stop_reason", "verified", "baseline", "speedup", "history", "provenance",
}  # fmt: skip
IN_PROVENANCE = {"candidate", "seed", "versions", "target", "cost_model", "checkpoint"}

TEACHING = ("--target", "teaching")


def test_json(cli: Cli, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    outcome = cli("solve", ALEXNET, *TEACHING, *BRIEF, "--seed", 7, "-o", output, "--json")
    result = json.loads(outcome.out)
    assert outcome.code == 0
    assert result.keys() >= FIELDS
    assert result["provenance"].keys() >= IN_PROVENANCE
    assert result["plan_file"] == str(output)
    assert result["plan"] == json.loads(output.read_bytes())
    assert (result["status"], result["verified"], result["provenance"]["seed"]) == ("feasible", True, 7)
    assert result["history"][-1].keys() == {"seconds", "source", "objective", "bound"}
    plan = read_plan(output)
    assert plan.objective == result["objective"] >= result["bound"] > 0
    assert result["gap"] == pytest.approx(1 - result["bound"] / result["objective"])
    assert cli("verify", ALEXNET, output).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_json_without_a_plan_file(cli: Cli) -> None:
    outcome = cli("solve", ALEXNET, *TEACHING, *BRIEF, "--json", "-q")
    values = json.loads(outcome.out)
    assert values["plan_file"] is None
    assert values["plan"]["problem"] == values["provenance"]["problem_digest"]
    assert outcome.err == ""


def test_text(cli: Cli) -> None:
    outcome = cli("solve", ALEXNET, *TEACHING, *BRIEF)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == "alexnet_inf_b1/jit__lambda on teaching (roofline)"
    assert [line.split()[0] for line in lines[1:4]] == ["objective", "bound", "status"]
    # Progress goes to standard error, and nowhere where it is not wanted.
    assert "gap" in outcome.err
    assert all(line.startswith("[") for line in outcome.err.splitlines())
    quiet = cli("solve", ALEXNET, *TEACHING, *BRIEF, "--quiet")
    assert quiet.err == ""
    assert quiet.out.splitlines()[0] == lines[0]


def test_a_converted_problem_is_the_same_problem(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    problem, again = tmp_path / "problem.json", tmp_path / "again.json"
    outcome = cli("convert", ALEXNET, *TEACHING, "-o", problem)
    assert outcome == (0, "", f"{problem}: 20 steps, 38 tensors, 59 uses\n")
    assert problem.read_bytes() == solved.problem_file.read_bytes()
    assert cli("convert", problem, "-o", again).code == 0
    assert again.read_bytes() == problem.read_bytes()
    digests = set()
    for arguments in ((ALEXNET, *TEACHING), (problem,)):
        result = json.loads(cli("solve", *arguments, *BRIEF, "-q", "--json").out)
        digests.add(result["provenance"]["problem_digest"])
    assert digests == {solved.problem.digest}
    assert cli("verify", problem, solved.plan_file).code == 0


def test_capacity(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    """More memory never costs time, on a program or on a problem file; far too little leaves everything slow."""
    objectives = []
    for capacity in (1, 2**19, 2**20, 10**19):
        arguments = ("--candidates", "exact", "--time-limit", HANG, "--capacity", capacity, "-q", "--json")
        result = json.loads(cli("solve", solved.problem_file, *arguments).out)
        assert result["details"]["capacity"] == capacity
        assert result["status"] == "optimal"
        objectives.append(result["objective"])
    assert objectives == sorted(objectives, reverse=True)
    assert objectives[0] == solved.problem.all_slow_ps
    assert objectives[2] == solved.plan.objective
    other = stowplan.read(ALEXNET, "teaching", capacity=2**19)
    assert other == stowplan.read(solved.problem_file, capacity=2**19)
    assert other.digest != solved.problem.digest


def test_xla_plan_with_the_freedoms_it_uses(cli: Cli, tmp_path: Path) -> None:
    program, given = (DATA / "xla_plan" / name for name in ("donated.hlo.txt", "donated.plan.hlo.txt"))
    output = tmp_path / "plan.json"
    freedoms = ("--set", "donation=tied", "--set", "evictions=between_steps", "--set", "prefetches=sliced", "--capacity", 98304)
    outcome = cli(
        "solve", program, "--target", "tpu-v4", *freedoms, "--plan", f"xla={given}", *BRIEF, "-o", output, "--json", "-q"
    )
    result = json.loads(outcome.out)
    assert outcome.code == 0
    assert result["verified"]
    assert "xla_plan" not in result.get("details", {})  # where there is something to say of the import, it is there
    assert result["speedup"] >= 1
    assert cli("verify", program, output, *freedoms).code == 0
    assert cli("verify", program, output, *freedoms[:-4], "--capacity", 98304).code == 4


def test_deterministic_runs_give_the_same_bytes(cli: Cli, tmp_path: Path) -> None:
    options = ("--candidates", "exact", "--time-limit", "4", "--deterministic", "-q")
    written = []
    for name in ("one", "two"):
        assert cli("solve", ALEXNET, *TEACHING, *options, "-o", tmp_path / name).code == 0
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]


def test_no_limit_to_speak_of(cli: Cli, solved: Solved) -> None:
    """The run ends with its proof; but what JSON has no number for is no limit."""
    outcome = cli("solve", solved.problem_file, "--candidates", "exact", "--time-limit", "1e300", "-q", "--json")
    result = json.loads(outcome.out)
    assert (outcome.code, result["status"]) == (0, "optimal")
    outcome = cli("solve", solved.problem_file, "--time-limit", "inf")
    assert "found a time limit of inf s, expected more than 0, a finite number" in error_line(outcome)


def test_the_limit_holds_with_reading(cli: Cli) -> None:
    """Reading alone takes longer than the limit; what is solved then ends by it, with the plan that needs no search."""
    outcome = cli("solve", EXAMPLES / "resnet50_inf_b1.hlo.txt.gz", "--target", "tpu-v4", *BRIEF, "-q", "--json")
    result = json.loads(outcome.out)
    assert (outcome.code, result["stop_reason"]) == (0, "time_limit")
    # It says the limit that was given, not what reading has left of it.
    assert result["provenance"]["options"]["time_limit"] == float(BRIEF[-1])
    assert result["seconds_before"] > 0
    assert result["stopped"].startswith(f"stopped at the time limit of {float(BRIEF[-1])} s")


def test_gap_stops(cli: Cli, solved: Solved) -> None:
    outcome = cli("solve", solved.problem_file, "--candidates", "exact", "--gap", "0.9", "-q", "--json")
    result = json.loads(outcome.out)
    assert result["stop_reason"] == "gap_reached"
    assert 0 < result["gap"] <= 0.9


def test_exit_codes_of_packing(cli: Cli, tmp_path: Path) -> None:
    buffers = tmp_path / "three.csv"
    buffers.write_text("id,lower,upper,size\na,0,4,3\nb,2,6,4\nc,4,8,3\n")
    plan = tmp_path / "plan.csv"
    for options, code, status in ((("--capacity", 7), 0, "optimal"), ((), 0, "optimal"), (("--capacity", 6), 1, "infeasible")):
        outcome = cli("solve", buffers, *options, "--candidates", "exact", "--time-limit", 20, "-q", "--json", "-o", plan)
        result = json.loads(outcome.out)
        assert (outcome.code, result["status"], result["unit"]) == (code, status, "bytes")
        assert (result["plan_file"], result["objective"]) == ((str(plan), 7) if code == 0 else (None, None))
        assert (result["plan"] is None) == (code != 0)
        assert plan.exists() == (code == 0)
        plan.unlink(missing_ok=True)
    assert cli("convert", buffers, "-o", tmp_path / "problem.json").err.endswith("problem.json: 3 buffers\n")
    assert cli("solve", tmp_path / "problem.json", "-o", tmp_path / "plan.json", "-q").code == 0
    valid = cli("verify", tmp_path / "problem.json", tmp_path / "plan.json").out
    assert valid == "valid: 7 bytes; there was no capacity to compare it with (--capacity SIZE gives one)\n"
    for option in (("--target", "teaching"), ("--set", "stalls=allowed"), ("--set", "cost_model=roofline")):
        for source in (buffers, tmp_path / "problem.json"):
            assert str(source) in error_line(cli("solve", source, *option))
    assert cli("show", tmp_path / "plan.json", buffers).out.startswith("three: 3 buffers, 7 bytes high\n")


def test_no_plan_within_the_limit(cli: Cli, tmp_path: Path) -> None:
    """Buffers with fixed offsets leave no plan that costs nothing, and there are too many for what time there is."""
    buffers = tmp_path / "fixed.csv"
    rows = "".join(f"b{number},{number % 7},{number % 7 + 9},{number + 1},\n" for number in range(500))
    buffers.write_text(f"id,lower,upper,size,offset\n{rows}z,0,20,1,5\n")
    output = tmp_path / "plan.json"
    outcome = cli("solve", buffers, "--candidates", "cpsat", "--time-limit", "0.01", "-q", "--json", "-o", output)
    result = json.loads(outcome.out)
    assert (outcome.code, result["status"], result["stop_reason"]) == (3, "no_plan", "time_limit")
    assert result["bound"] > 0
    assert not output.exists()


def test_names_that_are_not_utf8(cli: Cli, tmp_path: Path) -> None:
    source, output = (Path(os.fsdecode(os.fsencode(tmp_path) + name)) for name in (b"/caf\xe9.hlo.txt.gz", b"/plan\xff.json"))
    try:
        source.write_bytes(ALEXNET.read_bytes())
    except OSError:
        pytest.skip("this file system takes only UTF-8 names")
    outcome = cli("solve", source, *TEACHING, *BRIEF, "-o", output, "--json")
    result = json.loads(outcome.out)
    assert (outcome.code, result["plan_file"]) == (0, f"{tmp_path}/plan\\xff.json")
    assert result["provenance"]["program"] == "caf\\xe9/jit__lambda"
    assert cli("verify", source, output).code == 0
    assert cli("show", output, source).code == 0
    assert cli("convert", source, *TEACHING, "-o", output).code == 0
    assert cli("convert", output, "-o", tmp_path / "again.json").code == 0
    output.unlink()
    assert "cannot read: No such file" in error_line(cli("verify", source, output))


def test_report_and_picture(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report, png = tmp_path / "report.html", tmp_path / "plan.png"
    assert cli("solve", solved.problem_file, *BRIEF, "--report", report, "--png", png, "-q").code == 0
    assert "alexnet_inf_b1" in report.read_text()
    assert png.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["", "solve", "verify", "convert", "batch", "compare", "show", "targets"])
def test_help(cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = cli(*command.split(), "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: {' '.join(('stowplan', *command.split()))} [OPTIONS]")
    assert all(len(line) < 80 for line in outcome.out.splitlines())
    # Names for people, every option explained, nothing cut short.
    for ugly in ("{", "<", "...\n", "None"):
        assert ugly not in outcome.out.replace("[ARGS]...\n", "").replace("SUITE...\n", ""), ugly
    assert cli(*command.split(), "-h").out == outcome.out


def test_version_and_no_command(cli: Cli) -> None:
    assert cli("--version").out == f"stowplan {stowplan.__version__}\n"
    bare = cli()
    assert (bare.code, bare.out) == (2, "")
    assert bare.err.startswith("Usage: stowplan [OPTIONS] COMMAND")


# --------------------------------------------------------------------------------------------------------------- hints


def test_a_plan_and_its_hint_guide_the_next_run(cli: Cli, tmp_path: Path) -> None:
    plan, hint = tmp_path / "plan.json", tmp_path / "hint.json"
    assert cli("solve", ALEXNET, *TEACHING, *BRIEF, "-o", plan).code == 0
    found = read_plan(plan)
    of_plan(stowplan.read(ALEXNET, target="teaching"), found).save(hint)
    for path in (plan, hint):
        outcome = cli("solve", ALEXNET, *TEACHING, *BRIEF, "--hint", path, "--json")
        result = json.loads(outcome.out)
        assert outcome.code == 0
        assert result["baselines"]["hint"] == found.objective >= result["objective"]
        assert result["provenance"]["options"]["hint"] == "plan"


@pytest.mark.parametrize("damage", ["nothing", "not JSON", "another format", "another problem", "out of range", "too few"])
def test_a_hint_that_does_not_fit_is_one_line(cli: Cli, tmp_path: Path, damage: str) -> None:
    path, output = tmp_path / "hint.json", tmp_path / "plan.json"
    problem = stowplan.read(ALEXNET, target="teaching")
    count = counts(problem)["fast"]
    values = [0.5] * (count - 1 if damage == "too few" else count)
    spoilt = hint(problem, values, [2.0 if damage == "out of range" else 0.5] * count)
    content = json.loads(msgspec.json.encode(spoilt))
    content["problem"] = "another" if damage == "another problem" else content["problem"]
    content["format"] = "stowplan.packing.plan" if damage == "another format" else content["format"]
    path.write_text("" if damage == "nothing" else "id,lower" if damage == "not JSON" else json.dumps(content))
    outcome = cli("solve", ALEXNET, *TEACHING, *BRIEF, "--hint", path, "-o", output)
    assert outcome.code == 2
    assert str(path) in error_line(outcome)
    assert not output.exists()


def test_a_plan_of_an_earlier_version_guides(cli: Cli, tmp_path: Path) -> None:
    plan, output = tmp_path / "plan.json", tmp_path / "new.json"
    problem = stowplan.read(ALEXNET, target="teaching")
    data = arrays.build(problem)
    state, _ = heuristics.run(heuristics.production_greedy(data), lambda: False)
    export_plan(problem, data, state).save(plan)
    # The same program under another name, with another capacity: another problem.
    earlier, later = tmp_path / "earlier.json", tmp_path / "later.json"
    problem.save(earlier)
    msgspec.structs.replace(problem, name="later", capacity=problem.capacity + problem.alignment).save(later)
    refused = cli("solve", later, *BRIEF, "--hint", plan)
    assert refused.code == 2
    assert "found a plan for the problem" in error_line(refused)
    outcome = cli("solve", later, *BRIEF, "--hint", plan, "--set", f"hint_program={earlier}", "-o", output, "--json")
    assert outcome.code == 0
    found = json.loads(outcome.out)
    assert found["provenance"]["options"]["hint"] == "plan"
    # The earlier plan itself comes along: nothing but the capacity has changed.
    assert found["baselines"]["hint"] == json.loads(plan.read_bytes())["objective_ps"]
    assert cli("verify", later, output).code == 0
    alone = cli("solve", later, *BRIEF, "--set", f"hint_program={earlier}")
    assert "there is neither" in error_line(alone)


def test_a_plan_that_is_not_valid_is_no_hint(cli: Cli, tmp_path: Path) -> None:
    problem = stowplan.read(ALEXNET, target="teaching")
    Plan(problem=problem.digest, objective=1, fast_uses=(0,)).save(tmp_path / "plan.json")
    outcome = cli("solve", ALEXNET, *TEACHING, *BRIEF, "--hint", tmp_path / "plan.json")
    assert outcome.code == 2
    assert "the plan 'hint' is not valid for this problem" in error_line(outcome)


def test_prod_is_never_worse_than_the_kinds_baseline(cli: Cli) -> None:
    found = json.loads(cli("solve", EXAMPLES / "banks.json", "--baseline", "prod", "--time-limit", HANG, "--json", "-q").out)
    assert (found["baseline_name"], found["provenance"]["options"]["baseline"]) == ("by_size", "by_size")
    assert found["objective"] <= found["baseline"]
    assert found["gain_percent"] == pytest.approx(100 * (1 - found["objective"] / found["baseline"]))
    assert "gain " in cli("solve", EXAMPLES / "banks.json", "--baseline", "prod", "--time-limit", HANG, "-q").out


@pytest.mark.parametrize(
    ("name", "size", "is_ahead"), [("a.hlo.txt.gz", 40_000, True), ("a.hlo.txt.gz", 10, False), ("a.csv", 40_000, False)]
)
def test_workers_load_while_a_large_program_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int, is_ahead: bool
) -> None:
    asked: list[CandidateId] = []
    monkeypatch.setattr(WarmWorkers, "prepare", lambda self, *candidates: asked.extend(candidates))
    path = tmp_path / name
    path.write_bytes(bytes(size))
    solve._preload_worker(path)
    assert len(asked) == is_ahead
    assert all(callable(candidate.load()) for candidate in asked)
    solve._preload_worker(tmp_path / "missing.hlo.txt.gz")
    assert len(asked) == is_ahead
