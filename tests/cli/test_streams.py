"""Streams that are closed, full or left by their reader; Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowplan.frontends.read import read_plan
from tests.cli.conftest import ALEXNET, BRIEF_PROCESS, EXAMPLES, Cli, Solved, run_process
from tests.patience import HANG, wait_until

COMMAND = f"'{sys.executable}' -c 'from stowplan.cli import main; main()'"


@contextlib.contextmanager
def pipe_without_reader() -> Iterator[int]:
    """What is left of ``| head`` once it has seen enough."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def in_shell(arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", f"{COMMAND} {arguments}"], text=True, timeout=HANG, check=False, capture_output=True)


@pytest.mark.parametrize("arguments", [("--help",), ("targets",), ("solve", "--help")])
def test_output_nobody_reads(arguments: tuple[str, ...]) -> None:
    with pipe_without_reader() as writing:
        done = run_process(*arguments, stdout=writing, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, "")


def test_exit_codes_outlive_the_reader(solved: Solved, tmp_path: Path) -> None:
    spoilt = tmp_path / "spoilt.json"
    spoilt.write_text(json.dumps({**json.loads(solved.plan_file.read_text()), "objective_ps": 1}))
    with pipe_without_reader() as writing:
        done = run_process("verify", solved.problem_file, spoilt, stdout=writing, stderr=subprocess.PIPE)
    assert done.returncode == 4
    assert "not a valid plan: found 1 violation, expected none" in done.stderr


def test_solving_for_nobody(solved: Solved, tmp_path: Path) -> None:
    """Both readers gone: the plan is written all the same."""
    output = tmp_path / "plan.json"
    with pipe_without_reader() as writing:
        done = run_process("solve", solved.problem_file, *BRIEF_PROCESS, "-o", output, stdout=writing, stderr=writing)
    assert done.returncode == 0
    assert read_plan(output).problem == solved.problem.digest


@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(solved: Solved, tmp_path: Path, closed: str) -> None:
    output = tmp_path / "plan.json"
    done = in_shell(f"solve '{solved.problem_file}' {' '.join(BRIEF_PROCESS)} -o '{output}' {closed}")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert read_plan(output).problem == solved.problem.digest
    assert ("objective" in done.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments", [("targets",), ("solve", ALEXNET, "--target", "teaching", *BRIEF_PROCESS, "--json", "-q")]
)
def test_a_full_output(arguments: tuple[object, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = run_process(*arguments, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, "stowplan: standard output: cannot write: No space left on device\n")


def test_an_encoding_without_our_signs(solved: Solved) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run_process("show", solved.plan_file, solved.problem_file, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()


def children(pid: int) -> list[int]:
    """Processes a process has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_ctrl_c_and_its_like_give_the_best_plan_so_far(cli: Cli, tmp_path: Path, number: signal.Signals, code: int) -> None:
    source, output = EXAMPLES / "alexnet_train_b32.hlo.txt.gz", tmp_path / "plan.json"
    arguments = ("solve", source, "--target", "tpu-v4", "--candidates", "exact", "--time-limit", "90", "-o", output, "--json")
    process = subprocess.Popen(
        [sys.executable, "-c", "from stowplan.cli import main; main()", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if " ms, bound" in line:
            break
    workers: list[int] = []
    wait_until(lambda: workers.extend(children(process.pid)) or workers or process.poll() is not None)
    assert process.poll() is None, process.communicate()[1]
    process.send_signal(number)
    if number != signal.SIGINT:
        # As timeout sends it, and to the workers as Slurm does.
        process.send_signal(number)
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, number)
    out, err = process.communicate(timeout=HANG)
    assert process.returncode == code
    assert err.splitlines()[-1] == "stowplan: interrupted"
    assert "Traceback" not in err
    result = json.loads(out)
    assert (result["stop_reason"], result["verified"]) == ("cancelled", True)
    assert not [report for report in result["candidates"] if report["outcome"] == "failed"]
    assert cli("verify", source, output).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    wait_until(lambda: not any(map(is_running, workers)))


def test_a_signal_while_another_sets_the_event() -> None:
    """The second comes within the first's handler, and does not wait for itself."""
    script = (
        "import signal, threading; from stowplan.cli import event_on_interrupt\n"
        "class Event(threading.Event):\n"
        "    def set(self):\n"
        "        with self._cond: signal.raise_signal(signal.SIGTERM)\n"
        "        super().set()\n"
        "threading.Event = Event\n"
        "with event_on_interrupt() as event:\n"
        "    signal.raise_signal(signal.SIGHUP)\n"
        "    print(event.is_set())"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=HANG).stdout == "True\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_at_any_moment(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """From the first import of ours on, Ctrl-C ends in one line."""
    # The timer starts within `main`, so that none of the test's own lines is interrupted.
    script = (
        "import signal, threading; from stowplan import cli; run = cli._run; "
        "cli._run = lambda words: (threading.Timer({}, signal.raise_signal, ({},)).start(), run(words))[1]; cli.main()"
    )
    for wait in (0.0, 0.05, 0.15, 0.4):
        done = subprocess.run(
            [sys.executable, "-c", script.format(wait, int(number)), "solve", str(EXAMPLES / "gpt_decode_loop_b8.hlo.txt.gz"),
             "--target", "tpu-v4", "--candidates", "exact", "--time-limit", "60", "-o", str(tmp_path / "plan.json")],
            capture_output=True, text=True, timeout=HANG, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert done.stderr.splitlines()[-1] == "stowplan: interrupted"
        assert not re.search("Traceback", done.stderr), done.stderr
        assert {path.name for path in tmp_path.iterdir()} <= {"plan.json"}
