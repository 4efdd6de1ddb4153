"""The lines of a server: every request gets one answer, whatever else is sent, and the server ends as it should."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

import stowplan
from stowplan.backends.serve import messages
from stowplan.kernel.context import Options
from stowplan.models.packing.problem import Problem as PackingProblem
from tests.backends.serve.conftest import PACKING, REST, Client
from tests.backends.serve.rest import Problem
from tests.paths import EXAMPLES

Start = Callable[..., Client]
BUFFERS = str(EXAMPLES / "buffers.csv")


def test_hello_says_versions_and_limits(start: Start) -> None:
    client = start(jobs=3, most_waiting=7, most_bytes=5000)
    client.send(id="a", type="hello")
    said = client.answer("a")
    assert (said["type"], said["version"], said["stowplan"]) == ("hello", messages.VERSION, stowplan.__version__)
    assert (said["jobs"], said["workers"], said["queue"], said["max_line_bytes"]) == (3, 2, 7, 5000)
    assert "packing" in said["kinds"]


def test_solve_a_problem_in_the_line(start: Start) -> None:
    client = start()
    client.solve(1, PACKING)
    answer = client.answer(1)
    result = answer["result"]
    assert (answer["type"], answer["fallback"]) == ("result", False)
    assert (result["objective"], result["bound"], result["status"], result["stop_reason"]) == (96, 96, "optimal", "optimal")
    assert {*result} >= {"plan", "provenance", "history", "stopped", "warnings"}
    # The plan in the answer is a plan file.
    problem = PackingProblem.decode(json.dumps(PACKING).encode())
    plan = type(stowplan.solve(problem).plan).decode(json.dumps(result["plan"]).encode())
    assert stowplan.verify(problem, plan).ok


def test_solve_and_verify_files(start: Start, tmp_path: Any) -> None:
    client = start()
    client.solve("s", BUFFERS, options={"capacity": "1 GiB", "seed": 3, "workers": 1, "candidates": "heuristic"})
    result = client.answer("s")["result"]
    assert (result["status"], result["provenance"]["seed"], result["provenance"]["options"]["workers"]) == ("optimal", 3, 1)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(result["plan"]))
    for name, plan in (("v", result["plan"]), ("w", str(path))):
        client.send(id=name, type="verify", problem=BUFFERS, plan=plan)
        said = client.answer(name)
        assert (said["type"], said["ok"], said["objective"], said["violations"]) == ("verification", True, 2609152, [])
    client.send(id="x", type="verify", problem=BUFFERS, plan=result["plan"] | {"offsets": [0] * len(result["plan"]["offsets"])})
    said = client.answer("x")
    assert not said["ok"]
    assert {"code", "message"} == {*said["violations"][0]}


def test_given_plans_are_baselines(start: Start) -> None:
    client = start()
    client.solve(1, PACKING)
    plan = client.answer(1)["result"]["plan"]
    client.solve(2, PACKING, plans={"mine": plan}, options={"baseline": "mine"})
    result = client.answer(2)["result"]
    assert (result["baseline_name"], result["baselines"]["mine"]) == ("mine", 96)


def test_certificates_and_caches(start: Start, tmp_path: Any) -> None:
    client = start(cache=tmp_path)
    for name in ("a", "b"):
        client.solve(name, PACKING, options={"certify": True})
        answer = client.answer(name)
        assert (answer["certificate"]["bound"], answer["result"]["certified_bound"]) == (96, 96)
        assert ("cached" in answer["result"]["details"]) == (name == "b")


#: Lines that are no requests, the code of the error, a part of its message, and the id that it names.
BAD_LINES: list[tuple[bytes, str, str, Any]] = [
    (b"nonsense", "json", "JSON is malformed", None),
    (b"[]", "json", "Expected `object`", None),
    (b'{"id": 1', "json", "truncated", None),
    (b"\xff\xfe{}", "json", "can't decode byte 0xff", None),
    (b'{"id": 7, "type": "solve", "problem": "\xff"}', "json", "can't decode byte 0xff", None),
    (b'{"id": 7, "type": "solve", "problem": "\\ud800"}', "json", "expected a request", None),
    (b"[" * 200_000, "json", "expected a request", None),
    (b'{"id":1,"type":"solve","problem":' + b'{"a":' * 200_000, "json", "expected a request", None),
    (b"{}", "request", "id: Expected `int | str`", None),
    (b'{"id": true, "type": "hello"}', "request", "got `bool`", None),
    (b'{"id": 1.5, "type": "hello"}', "request", "got `float`", None),
    (b'{"id": [1], "type": "hello"}', "request", "got `array`", None),
    (b'{"id": "' + b"x" * 201 + b'", "type": "hello"}', "request", "200 characters", None),
    (b'{"id": 7}', "request", "found type None, expected one of hello, solve, verify, cancel, shutdown", 7),
    (b'{"id": 7, "type": "sovle"}', "request", "found type 'sovle'", 7),
    (b'{"id": 7, "type": ["solve"]}', "request", "expected one of", 7),
    (b'{"id": 7, "type": "hello", "version": 2}', "version", "found version 2, expected 1", 7),
    (b'{"id": 7, "type": "hello", "version": true}', "version", "expected 1", 7),
    (b'{"id": 7, "type": "solve"}', "request", "missing required field `problem`", 7),
    (b'{"id": 7, "type": "solve", "problem": {}, "deadline": 3}', "request", "expected `deadline_ms`", 7),
    (b'{"id": 7, "type": "solve", "problem": {}, "deadline_ms": 0}', "request", "deadline_ms: ", 7),
    (b'{"id": 7, "type": "solve", "problem": {}, "deadline_ms": -1}', "request", "deadline_ms: ", 7),
    (b'{"id": 7, "type": "solve", "problem": {}, "deadline_ms": 1e999}', "request", "deadline_ms", 7),
    (b'{"id": 7, "type": "solve", "problem": {}, "options": []}', "request", "options: ", 7),
    (b'{"id": 7, "type": "solve", "problem": {}, "fallback": 1}', "request", "fallback: ", 7),
    (b'{"id": 7, "type": "cancel"}', "request", "missing required field `request`", 7),
    (b'{"id": 7, "type": "cancel", "request": 8}', "unknown_request", "found no request 8", 7),
    (b'{"id": 7, "type": "solve", "problem": {}}', "input", "the request: found a JSON object without a format", 7),
    (b'{"id": 7, "type": "solve", "problem": null}', "input", "the request: found no JSON object", 7),
    (b'{"id": 7, "type": "solve", "problem": [1, 2]}', "input", "a list of 2", 7),
    (b'{"id": 7, "type": "solve", "problem": "no/such/file"}', "input", "no/such/file: cannot read", 7),
    (b'{"id": 7, "type": "solve", "problem": "/"}', "input", "found a folder", 7),
    (b'{"id": 7, "type": "solve", "problem": "/dev/zero"}', "input", "found a pipe or device", 7),
    (b'{"id": 7, "type": "solve", "problem": "a\\u0000b"}', "input", "cannot read", 7),
    (b'{"id": 7, "type": "solve", "problem": ""}', "input", "cannot read", 7),
    (b'{"id": 7, "type": "solve", "problem": {"format": "stowplan.packing.problem", "version": 1}}', "input", "`buffers`", 7),
    (b'{"id": 7, "type": "solve", "problem": {"format": "stowplan.packing.problem", "version": 9}}', "input", "version", 7),
]  # fmt: skip


@pytest.mark.parametrize(("line", "code", "part", "name"), BAD_LINES)
def test_a_bad_line_gets_one_error_and_ends_nothing(start: Start, line: bytes, code: str, part: str, name: Any) -> None:
    client = start()
    client.write(line + b"\n")
    error = client.next()
    assert (error["type"], error["id"], error["code"]) == ("error", name, code)
    assert part in error["message"]
    assert len(error["message"]) <= 700
    assert error["message"].isprintable()
    client.send(id=7, type="hello")
    assert client.next()["type"] == "hello"


@pytest.mark.parametrize(
    ("options", "code", "part"),
    [
        ({"capacty": 5}, "usage", "perhaps capacity"),
        ({"time_limit": 5}, "usage", "perhaps deadline_ms"),
        ({"seed": "x"}, "usage", "found seed 'x'"),
        ({"seed": -1}, "usage", "found seed -1"),
        ({"workers": 3}, "usage", "found workers 3, expected at most the 2 of this server"),
        ({"workers": 0}, "usage", "0 workers"),
        ({"candidates": 5}, "usage", "found candidates 5"),
        ({"candidates": ["no such"]}, "usage", "found candidate 'no such'"),
        ({"work_limit": 3}, "usage", "found a work limit, which is for deterministic runs"),
        ({"gap": 2}, "usage", "a gap of 2"),
        ({"deterministic": "no"}, "usage", "deterministic 'no'"),
        ({"memory_limit": "lots"}, "usage", "a memory limit of 'lots'"),
        ({"capacity": {}}, "usage", "a capacity of {}"),
        ({"capacity": "many"}, "usage", "a capacity of 'many'"),
        ({"target": 5}, "usage", "found target 5"),
        ({"stalls": "never"}, "usage", "stalls 'never'"),
        ({"cycles": [5]}, "usage", "found cycles [5], expected a list of texts"),
        ({"keep": 5}, "usage", "found keep 5, expected a list of texts"),
        ({"dim": {"a": None}}, "usage", "a=None"),
        ({"baseline": "nobody"}, "usage", "nobody"),
        ({"target": "se"}, "usage", "the request has a problem already, which does not take the option 'target'"),
    ],
)
def test_a_bad_option_gets_one_error(start: Start, options: dict[str, Any], code: str, part: str) -> None:
    client = start()
    client.solve(7, PACKING, options=options)
    error = client.answer(7)
    assert (error["type"], error["code"]) == ("error", code)
    assert part in error["message"]


def test_a_line_that_is_too_long_is_dropped(start: Start) -> None:
    client = start(most_bytes=1000)
    for length in (1001, 5000, 3 << 20):
        client.write(b" " * length + b"\n")
        assert client.next()["code"] == "line_too_long"
    client.write(b" " * (1000 - 25) + b'{"id": 1, "type":"hello"}\n')
    assert client.next()["type"] == "hello"


def test_blank_lines_and_carriage_returns_are_no_matter(start: Start) -> None:
    client = start()
    client.write(b'\n\r\n  \n{"id": 1, "type": "hello"}\r\n')
    client.close()
    assert [line["id"] for line in client.rest()] == [1]


def test_damaged_lines(start: Start) -> None:
    """Each line, damaged at random, gets one answer that says its id or none; the server goes on."""
    client, draw = start(), random.Random(5)
    whole = json.dumps({"id": 3, "type": "verify", "problem": PACKING, "plan": {"format": "x"}, "options": {}}).encode()
    for _ in range(300):
        line = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            at = draw.randrange(len(line))
            line[at : at + draw.choice([0, 1, 1, 9])] = draw.choice(
                [b"", b"{", b'"', b"\\", b"9", bytes([draw.randrange(256)])]
            )
        line = line.replace(b"\n", b" ").replace(b"shutdown", b"")
        if line.strip():
            client.write(bytes(line) + b"\n")
            said = client.next()
            assert said["type"] in ("error", "verification")
    client.send(id="end", type="hello")
    assert client.next()["id"] == "end"


def test_requests_run_at_the_same_time(start: Start) -> None:
    client = start(jobs=2)
    for name in ("a", "b"):
        client.solve(name, progress=True)
    # Neither ends before it is cancelled, so both run if both have found the plan of the last candidate.
    for name in ("a", "b"):
        client.wait_for_plan(name)
    for name in ("b", "a"):
        client.send(id=f"cancel {name}", type="cancel", request=name)
        assert client.answer(f"cancel {name}")["type"] == "done"
        result = client.answer(name)["result"]
        assert (result["stop_reason"], result["objective"], result["plan"]["chosen"]) == ("cancelled", 5, [2, 3])


def test_requests_wait_for_their_turn(start: Start) -> None:
    client = start(jobs=1, most_waiting=2)
    client.solve("runs", progress=True)
    client.wait_for_plan("runs")
    for name in ("first", "second", "third"):
        client.solve(name, PACKING)
    assert client.answer("third")["code"] == "busy"
    client.solve("first", PACKING)
    assert client.answer("first")["code"] == "duplicate_id"
    client.solve("runs", PACKING)
    assert client.answer("runs")["code"] == "duplicate_id"
    client.send(id=1, type="cancel", request="second")
    assert (client.answer("second")["code"], client.answer(1)["type"]) == ("cancelled", "done")
    client.send(id=2, type="cancel", request="runs")
    assert client.answer("runs")["result"]["stop_reason"] == "cancelled"
    assert client.answer("first")["result"]["status"] == "optimal"
    # Once a request is answered, its id is free.
    client.solve("runs", PACKING)
    assert client.answer("runs")["result"]["status"] == "optimal"


def test_an_id_is_free_once_its_answer_is_read(start: Start) -> None:
    client = start()
    for _ in range(300):
        client.send(id=1, type="verify", problem=PACKING, plan={"format": "stowplan.packing.plan", "version": 1})
        assert client.answer(1)["code"] == "input"


def test_a_deadline_ends_the_search(start: Start) -> None:
    client = start()
    client.solve(1, deadline_ms=300, options={"baseline": "first"})
    result = client.answer(1)["result"]
    assert (result["stop_reason"], result["status"], result["baseline"]) == ("time_limit", "feasible", 9)
    assert result["provenance"]["options"]["time_limit"] == 0.3


def test_a_deadline_that_passes_while_the_request_waits(start: Start) -> None:
    client = start(jobs=1)
    client.solve("runs", progress=True)
    client.wait_for_plan("runs")
    client.solve("late", deadline_ms=1)
    assert client.answer("late")["code"] == "deadline"
    client.solve("fallback", deadline_ms=1, fallback=True)
    answer = client.answer("fallback")
    assert (answer["fallback"], answer["result"]["plan"]["chosen"]) == (True, [1, 2])


def test_the_fallback_depends_on_no_clock(start: Start) -> None:
    client = start()
    # The exact candidate never ends, so the deadline always comes first; when it does is a matter of luck.
    plans = []
    for name, milliseconds in enumerate((1, 50, 400)):
        client.solve(name, deadline_ms=milliseconds, fallback=True)
        answer = client.answer(name)
        assert answer["fallback"]
        assert answer["result"]["verified"]
        assert answer["result"]["provenance"]["options"]["work_limit"] == 1 / 16
        plans.append(json.dumps(answer["result"]["plan"]))
    assert len({*plans}) == 1
    expected = stowplan.solve(
        msgspec.convert(REST, Problem), candidates="heuristic", deterministic=True, work_limit=1 / 16
    ).plan
    assert json.loads(plans[0]) == json.loads(msgspec.json.encode(expected))


def test_no_fallback_if_there_is_time(start: Start) -> None:
    client = start()
    client.solve(1, BUFFERS, fallback=True, options={"work_limit": 0.5})
    answer = client.answer(1)
    expected = stowplan.solve(stowplan.read(BUFFERS), deterministic=True, work_limit=0.5, time_limit=600)
    assert not answer["fallback"]
    assert answer["result"]["plan"] == json.loads(msgspec.json.encode(expected.plan))


def test_a_deterministic_request_does_the_work_of_its_line(start: Start) -> None:
    """The work follows from the deadline in the line, and not from what is left of it when the request begins."""
    client = start()
    client.solve(1, PACKING, deadline_ms=240_000, options={"deterministic": True})
    assert client.answer(1)["result"]["provenance"]["options"]["work_limit"] == 120.0


def test_the_end_of_the_input_waits_for_answers(start: Start) -> None:
    client = start(jobs=1)
    for name in range(4):
        client.solve(name, PACKING)
    client.write(b'{"id": 9, "type": "hello"}')  # a last line without its end
    client.close()
    lines = client.rest()
    assert sorted(line["id"] for line in lines) == [0, 1, 2, 3, 9]
    assert {line["type"] for line in lines} == {"result", "hello"}


@pytest.mark.parametrize("how", ["shutdown", "interruption", "interruption after the end of the input"])
def test_what_ends_all_requests(start: Start, how: str) -> None:
    client = start(jobs=1)
    client.solve("runs", progress=True)
    client.wait_for_plan("runs")
    client.solve("waits")
    client.send(id="is it there", type="hello")
    client.answer("is it there")
    if how == "shutdown":
        client.send(id="end", type="shutdown")
    else:
        if how.endswith("input"):
            client.close()
        client.interrupted.set()
    lines = [line for line in client.rest() if line["type"] != "progress"]
    by_name = {line["id"]: line for line in lines}
    assert by_name["runs"]["result"]["stop_reason"] == "cancelled"
    assert by_name["runs"]["result"]["objective"] == 5
    assert by_name["waits"]["code"] == "ending"
    assert [line["id"] for line in lines].count("end") == (how == "shutdown")
    if how == "shutdown":
        assert lines[-1] == {"type": "done", "id": "end"}


@pytest.mark.parametrize("closes_input", [False, True])
def test_a_client_that_is_gone_ends_the_server(start: Start, closes_input: bool) -> None:
    client = start()
    client.solve("runs", progress=True)
    client.wait_for_plan("runs")
    client.stop_reading()
    if closes_input:
        client.close()
    else:
        client.send(id=1, type="hello")
    client.join()


def test_a_client_that_does_not_read_holds_up_nothing(start: Start) -> None:
    client = start()
    # More than a pipe holds, with no answer read in between.
    for name in range(2000):
        client.send(id=f"{name} {'x' * 150}", type="hello")
    client.close()
    assert len(client.rest()) == 2000


def test_an_error_of_the_server_is_one_line(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **options: Any) -> None:
        raise RuntimeError("two\nlines")

    client = start()
    with monkeypatch.context() as patch:
        patch.setattr("stowplan.backends.serve.jobs.solve", fails)
        client.solve(1, PACKING)
        error = client.answer(1)
    assert (error["code"], error["message"]) == ("internal", "internal error: RuntimeError: two lines")
    client.solve(2, PACKING)
    assert client.answer(2)["result"]["status"] == "optimal"


def test_options_of_the_command_hold_for_requests_that_state_none(start: Start) -> None:
    client = start(defaults=Options(workers=1))
    client.solve(1, PACKING)
    assert client.answer(1)["result"]["provenance"]["options"]["workers"] == 1


def test_the_schema_has_all_types() -> None:
    schema = messages.schema()
    tags = {kind["properties"]["type"]["enum"][0] for kind in schema["$defs"].values()}
    assert tags == {
        "hello", "solve", "verify", "cancel", "shutdown", "progress", "result", "verification", "done", "error",
    }  # fmt: skip
    json.dumps(schema)
