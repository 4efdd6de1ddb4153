"""Signals that end a command: handled by the command line alone, once, and put back as they were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowplan.cli import as_interrupts, event_on_interrupt, main
from tests.cli.conftest import ALEXNET, BRIEF, EXAMPLES, Cli
from tests.patience import HANG

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in ALL]


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Every test leaves the handlers as it found them."""
    before = handlers()
    yield
    assert handlers() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_interrupts_and_others_are_ignored(number: signal.Signals) -> None:
    with as_interrupts() as received:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(number)
        assert (received.exit_code(130), received.exit_code(0), received.exit_code(2)) == (128 + number, 0, 2)


@pytest.mark.parametrize("number", ALL)
def test_stopping_sets_an_event(number: signal.Signals) -> None:
    with as_interrupts() as received, event_on_interrupt() as event:
        assert not event.is_set()
        signal.raise_signal(number)
        assert event.is_set()
        assert received.exit_code(130) == 128 + number
        if number != signal.SIGINT:
            signal.raise_signal(signal.SIGINT)
        # A second Ctrl-C is one.
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_what_is_ignored_stays_so() -> None:
    """``nohup`` ignores SIGHUP for what it starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with as_interrupts(), event_on_interrupt() as event:
            signal.raise_signal(signal.SIGHUP)
            assert not event.is_set()
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_users_own_handlers_come_back(cli: Cli) -> None:
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    try:
        assert cli("solve", ALEXNET, "--target", "teaching", *BRIEF, "-q").code == 0
        signal.raise_signal(signal.SIGTERM)
        assert calls == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_another_thread_touches_no_signal() -> None:
    codes: list[object] = []

    def run() -> None:
        try:
            main(["targets"])
        except SystemExit as ended:
            codes.append(ended.code)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(HANG)
    assert codes == [0]


def test_a_batch_keeps_what_is_finished(tmp_path: Path) -> None:
    """And the input at work has the best plan so far; the next run goes on from there."""
    output = tmp_path / "out"
    command = [sys.executable, "-c", "from stowplan.cli import main; main()", "batch", "--candidates", "exact"]
    command += ["--target", "tpu-v4", "--time-limit", "600", "--gap", "0.9", "-o", str(output)]
    suite = [str(EXAMPLES / f"{name}.hlo.txt.gz") for name in ("alexnet_inf_b1", "alexnet_train_b32")]
    assert subprocess.run([*command, suite[0]], capture_output=True, check=False).returncode == 0
    command[command.index("--gap") + 1] = "0"
    with subprocess.Popen([*command, suite[1], "--fresh"], stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        assert "alexnet_train_b32" in process.stderr.readline()
        # Reading it, or solving it: either ends.
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=HANG)
    assert process.returncode == 143, err
    assert err.splitlines()[-1] == "stowplan: interrupted"
    assert "Traceback" not in err
    names = {path.name for path in output.iterdir()}
    assert {"alexnet_inf_b1.plan.json", "alexnet_inf_b1.result.json"} <= names
    assert not [name for name in names if name.endswith(".tmp")]


@pytest.mark.skipif(not Path("/dev/ptmx").exists(), reason="needs a pseudo-terminal")
def test_a_terminal_that_closes_costs_no_plan(cli: Cli, tmp_path: Path) -> None:
    import pty

    output = tmp_path / "plan.json"
    source = EXAMPLES / "alexnet_train_b32.hlo.txt.gz"
    arguments = ["solve", source, "--target", "tpu-v4", "--candidates", "exact", "--time-limit", "600", "-o", output]
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from stowplan.cli import main; main()",
            *map(str, arguments),
        ],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    shown = b""
    while b"bound" not in shown:
        shown += os.read(leader, 4096)
    os.close(leader)
    assert process.wait(HANG) == 129
    assert cli("verify", source, output).code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
