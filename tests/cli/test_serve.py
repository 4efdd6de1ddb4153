"""The command ``serve`` as a process, and the example clients of it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.serve.conftest import REST
from tests.cli.conftest import Cli, error_line
from tests.paths import EXAMPLES, ROOT
from tests.patience import FOREVER, HANG

COMMAND = (sys.executable, "-m", "stowplan", "serve")
#: The same with a kind of problem whose search does not end by itself, so that the request runs when a signal arrives.
WITH_REST = (
    sys.executable,
    "-c",
    "from stowplan import kinds; from stowplan.cli import main\n"
    "kinds.register('rest', 'tests.backends.serve.rest:KIND')\n"
    "main(['serve'])",
)


def test_a_filter_of_lines() -> None:
    lines = [
        {"id": "hello", "type": "hello"},
        {"id": "solve", "type": "solve", "problem": str(EXAMPLES / "buffers.csv"), "deadline_ms": 1000 * HANG},
        {"id": "?", "type": "solve", "problem": "none.csv"},
    ]
    data = "\n".join(map(json.dumps, lines))
    done = subprocess.run([*COMMAND, "--jobs", "2"], input=data, capture_output=True, text=True, timeout=HANG, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    answers = {answer["id"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    assert answers["solve"]["result"]["status"] == "optimal"
    assert (answers["hello"]["jobs"], answers["?"]["code"]) == (2, "input")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_the_best_plan(number: signal.Signals, code: int) -> None:
    request = {"id": 1, "type": "solve", "problem": REST, "deadline_ms": 1000 * FOREVER, "progress": True}
    with subprocess.Popen(WITH_REST, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        while json.loads(process.stdout.readline())["objective"] is None:
            pass
        process.send_signal(number)
        lines = [json.loads(line) for line in process.stdout]
        assert process.wait(HANG) == code
    assert lines[-1]["result"]["stop_reason"] == "cancelled"
    assert lines[-1]["result"]["verified"]


def test_what_is_printed_goes_to_standard_error() -> None:
    """Nothing but answers is written to the client, whatever a library prints."""
    code = (
        "import os, sys\n"
        "from stowplan.backends.serve import server\n"
        "incoming, outgoing = server.open_pipes()\n"
        "print('printed', flush=True); os.system('echo by a child')\n"
        "os.write(outgoing, b'answer')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("answer", "printed\nby a child\n")


def test_bad_options_are_refused(cli: Cli) -> None:
    assert "a queue of 0 requests" in error_line(cli("serve", "--set", "queue=0"))
    assert "a line of 0 bytes" in error_line(cli("serve", "--set", "max_line=0"))
    assert "0 workers" in error_line(cli("serve", "--workers", 0))
    assert "found 'time_limit'" in error_line(cli("serve", "--set", "time_limit=3"))


def test_the_schema_is_printed(cli: Cli) -> None:
    outcome = cli("serve", "--schema")
    assert outcome.code == 0
    assert json.loads(outcome.out)["title"] == "stowplan serve, version 1"


def test_the_client_in_python() -> None:
    done = subprocess.run(
        [sys.executable, "examples/serve_client.py", *COMMAND, "--jobs", "2"],
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=ROOT,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["examples/data/buffers.csv", "examples/data/saxpy.dfg.json"]
    assert lines[0].endswith("2609152 bytes, bound 2609152, optimal")


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_the_client_in_cplusplus(tmp_path: Path) -> None:
    client = tmp_path / "client"
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run(["g++", *flags, ROOT / "examples" / "serve_client.cpp", "-o", client], check=True)
    done = subprocess.run([client, *COMMAND], capture_output=True, text=True, timeout=HANG, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "a at byte 0\nb at byte 64\n", "")
    gone = subprocess.run([client, tmp_path / "none"], capture_output=True, text=True, timeout=HANG)
    assert (gone.returncode, gone.stderr) == (1, "serve_client: the server has ended\n")
