"""``stowplan tune-xla``, with a compiler that takes milliseconds."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stowplan.backends.xla.tuning import Tuning
from stowplan.cli import tune_xla
from stowplan.hardware.costs.signatures import LatencyTable
from tests.backends.xla import conftest as xla
from tests.cli.conftest import Cli, error_line
from tests.patience import HANG, wait_until

fake, quick_plans = xla.fake, xla.quick_plans

pytestmark = pytest.mark.usefixtures("quick_plans")

TOY = ("tune-xla", "fake:toy", "--shapes", "f32[256,1024] f32[256,1024]")


def test_from_the_function_to_the_options(cli: Cli, fake: xla.Fake, tmp_path: Path) -> None:
    LatencyTable().save(tmp_path / "known.json")
    names = [tmp_path / name for name in ("tuning.json", "options.flags")]
    outputs = ("-o", names[0], "--output", names[1])
    done = cli(*TOY, "--option", "--xla_own=7", "--folder", tmp_path / "kept", "--table", tmp_path / "known.json", *outputs)
    assert done.code == 0, done.err
    tuning = Tuning.load(names[0])
    assert (tuning.name, tuning.gain) == ("toy", 1 - 4100 / 4500)
    assert tuning.compiler_options["xla_own"] == "7"
    assert dict(flag[2:].split("=", 1) for flag in shlex.split(names[1].read_text())) == tuning.compiler_options
    progress = done.err.splitlines()
    assert len(progress) == len(tuning.trials)
    assert progress[0].endswith("1/10 default: 4,500 cycles; best 0")
    assert progress[-1].endswith("best +8.9%")
    lines = done.out.splitlines()
    assert lines[0] == "toy on tpu-v4: 8.9% fewer cycles than by XLA's default"
    assert lines[-2] == f"  options    lowered.compile(compiler_options=json.load(open({str(names[0])!r}))['compiler_options'])"
    assert lines[-1] == f'  flags      LIBTPU_INIT_ARGS="$(cat {shlex.quote(str(names[1]))})"'
    # A second run compiles nothing, says the same, and needs no file.
    again = cli(*TOY, "--option", "xla_own=7", "--folder", tmp_path / "kept", "-q")
    assert (again.code, again.err) == (0, "")
    assert len(fake.compiles) == len(tuning.trials)
    assert f"(0.0 processor seconds, {tuning.previews} previews, {len(tuning.trials)} compiles found)" in again.out
    options, flags = again.out.splitlines()[-2:]
    assert options == f"  options    lowered.compile(compiler_options={tuning.compiler_options})"
    (value,) = shlex.split(flags.removeprefix("  flags      LIBTPU_INIT_ARGS="))
    assert value == names[1].read_text().rstrip("\n")


def test_a_mesh(cli: Cli, fake: xla.Fake) -> None:
    done = cli(*TOY, "--mesh", "data=2,model=2", "--partition", "-,model data -> data", "--compiles", 1, "-q")
    assert (done.code, done.err) == (0, "")
    assert len(fake.compiles) == 1


def test_a_report(cli: Cli, fake: xla.Fake, tmp_path: Path) -> None:
    """Made from results that need no folder of the user's."""
    done = cli(*TOY, "--compiles", 3, "--report", tmp_path / "report.html", "-q")
    assert done.code == 0, done.err
    page = (tmp_path / "report.html").read_text()
    assert "toy" in page
    assert page.rstrip().endswith("</html>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_the_whole_result(cli: Cli, fake: xla.Fake) -> None:
    done = cli(*TOY, "--compiles", 1, "--json", "-q")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["gain"], found["flags"], found["compiler_options"], found["stop_reason"]) == (0, "", {}, "compiles")
    assert cli(*TOY, "--compiles", 1, "-q").out.splitlines()[-1] == "  options    none: XLA's default was the best"


def test_long_options_are_for_a_file(cli: Cli, fake: xla.Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_xla, "_MAX_SHOWN", 100)
    *_, options, flags = cli(*TOY, "-q").out.splitlines()
    assert options.endswith("characters: -o FILE.json writes them for compiler_options")
    assert flags.endswith("characters: -o FILE.flags writes them for LIBTPU_INIT_ARGS")
    monkeypatch.setattr(tune_xla, "_MAX_VARIABLE_BYTES", 100)
    assert cli(*TOY, "-q").out.endswith("too long for LIBTPU_INIT_ARGS, only compiler_options takes them\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("toy",), "found 'toy', expected MODULE:NAME"),
        (
            ("fake:untraceable",),
            "untraceable: cannot trace the function: here.py:3: TypeError: cannot reshape (4,) into (3, 7)",
        ),
        (("fake:toy", "--option", "xla_nope=1"), "toy: INVALID_ARGUMENT: No such compile option: 'xla_nope'"),
        (("fake:toy", "--option", "xla_msa_enable=1"), "found compiler option xla_msa_enable, expected another"),
        (("fake:toy", "--option", "novalue"), "found option 'novalue', expected NAME=VALUE"),
        (("fake:toy", "--option", "a=1", "--option", "--a=2"), "found option a twice"),
        (("fake:toy", "--shapes", "f32[2"), "found shape 'f32[2', expected a type and dimensions"),
        (("fake:toy", "--shapes", "f32[2] q7[3]"), "found shape 'q7[3]' of an unknown type"),
        (("fake:toy", "--mesh", "4"), "found mesh '4', expected names and sizes of axes"),
        (("fake:toy", "--partition", "-"), "found a partition and no mesh"),
        (("fake:toy", "--mesh", "d=4", "--partition", "-,d"), "found partitions of 1 arguments, expected one for each of 0"),
        (("fake:crowded", "--mesh", "d=8"), "crowded on v4:2x2x1: found a mesh of [8], expected fewer"),
        (
            ("fake:toy()", "--arguments", "m:a"),
            "found more than one of shapes, arguments and a factory, expected one way to say the arguments",
        ),
        (("fake:toy", "--target", "teaching"), "found target 'teaching', expected one that XLA compiles for: tpu-7x, tpu-v4, "),
        (("fake:toy", "--compiles", "0"), "found 0 compiles, expected at least 1"),
        (("fake:toy", "--time-limit", "-1"), "found a time limit of -1.0 s"),
        (("fake:toy", "--compile-limit", "0"), "found a limit of 0.0 s for one compile"),
        (("fake:toy", "--table", "none.json"), "none.json: cannot read"),
        (("fake:toy", "-o", "no/such.json"), "no/such.json: cannot write: there is no folder"),
        (("fake:toy", "--report", "no/such.html"), "no/such.html: cannot write: there is no folder"),
        (("fake:toy", "-o", "x", "-o", "x"), "x: is to be written twice"),
        (("fake:toy", "--folder", "file/below"), "file/below: cannot write into it"),
    ],
)
def test_bad_input(
    cli: Cli, fake: xla.Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    outputs = () if "-o" in arguments else ("-o", "out.json")
    assert error_line(cli("tune-xla", *arguments, *outputs)).startswith(f"stowplan: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert len(fake.compiles) == ("xla_nope=1" in arguments)


def test_without_the_extra(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    missing = "jax and jaxlib and libtpu, not installed here: pip install '.[xla]' in a clone of stowplan"
    assert error_line(cli(*TOY)) == f"stowplan: compiling for XLA needs {missing}"


def interrupted(fake: xla.Fake, tmp_path: Path, when: str, how: signal.Signals) -> tuple[int, str, str]:
    """Runs the command in a process of its own and sends it a signal once it has said ``when``, or hangs."""
    setup = (
        "import stowplan.backends.xla.compiler as c\n"
        f"c.CHILD_COMMAND = {xla.FAKE!r}\nc.versions = lambda: {{}}\n"
        "from stowplan.cli import main; main()"
    )
    hang = "hang" if when == "hang" else "tuned:hang"
    command = [sys.executable, "-c", setup, *TOY, "--option", f"fake={hang}", "-o", str(tmp_path / "out.json")]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline() if when != "hang" else ""
        hangs = fake.log.with_name("log.hangs")
        wait_until(hangs.exists)
        process.send_signal(how)
        out, err = process.communicate(timeout=HANG)
    return process.returncode, out, said + err


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_gives_the_best_so_far(fake: xla.Fake, tmp_path: Path, how: signal.Signals, code: int) -> None:
    returned, out, err = interrupted(fake, tmp_path, "default", how)
    assert returned == code, err
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "stowplan: interrupted"
    assert "stopped    by the user, after" in out
    tuning = Tuning.load(tmp_path / "out.json")
    assert (len(tuning.trials), tuning.best, tuning.stop_reason) == (1, 0, "cancelled")


def test_a_signal_before_there_is_anything(fake: xla.Fake, tmp_path: Path) -> None:
    assert interrupted(fake, tmp_path, "hang", signal.SIGINT) == (130, "", "stowplan: interrupted\n")
    assert not list(tmp_path.iterdir())
