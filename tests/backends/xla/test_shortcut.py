"""Compiles that are left out from the assignment on, since it is one that is known."""

from __future__ import annotations

import gzip
import hashlib
import subprocess
import sys
from pathlib import Path

from stowplan.backends.xla import tune_workload
from stowplan.backends.xla.child import ASSIGNED, COMPILED, OFFSETS, PROGRAM, assignment_digest
from stowplan.backends.xla.experience import Experience
from tests.backends.xla.conftest import WORKLOAD, Fake
from tests.patience import HANG

MODULE = "HloModule m\nENTRY %main () -> f32[] {\n}\n"

#: A compile that writes its assignment in two parts, then works on, for ever where that is a known one.
COMPILE = """
import sys, time
from pathlib import Path
from stowplan.backends.xla.child import Compile, Shortcut

folder, digest, known, text = sys.argv[1:]
with Shortcut(Compile({}, folder, {digest: known}), lambda: print("ended", flush=True)) as dump:
    path = Path(dump) / "module_1.m.after_optimizations.txt"
    path.write_text(text[:20])
    time.sleep(0.5)
    path.write_text(text)
    time.sleep(1.5 if "other" in text else 600)
print("compiled")
"""


def known(folder: Path) -> str:
    """A result, and the digest of its assignment."""
    folder.mkdir()
    for name in (ASSIGNED, COMPILED, OFFSETS):
        (folder / name).write_bytes(gzip.compress((MODULE if name == ASSIGNED else name).encode()))
    return assignment_digest(folder)


def compiled(folder: Path, digest: str, place: Path, text: str) -> str:
    folder.mkdir()
    command = [sys.executable, "-c", COMPILE, str(folder), digest, str(place), text]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANG).stdout.strip()


def test_a_known_assignment_ends_the_compile(tmp_path: Path) -> None:
    digest = known(tmp_path / "known")
    assert digest == hashlib.sha256(MODULE.encode()).hexdigest()
    assert compiled(tmp_path / "new", digest, tmp_path / "known", MODULE) == "ended"
    names = {path.name for path in (tmp_path / "new").iterdir() if path.is_file()}
    assert names == {ASSIGNED, COMPILED, OFFSETS}
    assert PROGRAM not in names
    assert (tmp_path / "new" / COMPILED).read_bytes() == (tmp_path / "known" / COMPILED).read_bytes()


def test_another_assignment_is_compiled_to_its_end(tmp_path: Path) -> None:
    digest = known(tmp_path / "known")
    assert compiled(tmp_path / "new", digest, tmp_path / "known", MODULE.replace("main", "other")) == "compiled"
    assert [*(tmp_path / "new").iterdir()] == []


def test_the_run_is_the_same_with_less_work(fake: Fake, quick_plans: None, tmp_path: Path) -> None:
    """An order that changes nothing is scored as what it equals; its process is replaced."""
    runs = [
        tune_workload(WORKLOAD, compiles=14, folder=tmp_path / how, compiler_options={"fake": how}, experience=Experience())
        for how in ("whole", "shortcut")
    ]
    whole, short = ([(trial.way, trial.steer, trial.total) for trial in run.trials] for run in runs)
    assert whole == short
    spent = [[trial.processor_seconds for trial in run.trials] for run in runs]
    assert set(spent[0]) == {1.5}
    assert set(spent[1]) == {1.5, 0.1}
    assert len({total for *_, total in short}) < len(short)
