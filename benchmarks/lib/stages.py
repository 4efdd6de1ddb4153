"""What the time of a call goes into, in this process and in its workers: spans of named stages, written to one file.

A folder with a ``sitecustomize`` that calls :func:`install` is put on the path, where workers find it. Functions are timed from
the moment at which their modules are imported; modules are imported when and where they would be without this.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

#: Names the file that spans are written to.
TRACE = "STOWPLAN_BENCHMARK_TRACE"

_HERE = "stowplan.portfolio.memory_mapping"

#: Functions by module, with their stages.
STAGES = {
    "stowplan.frontends.read": {"open_input": "read", "open_with": "read"},
    "stowplan.files": {"decode": "conversion"},
    "stowplan.kernel.state": {"check": "verification"},
    "stowplan.kernel.outcome": {"result_of": "result"},
    "stowplan.kernel.workers.process": {"WorkerProcess.__init__": "start of workers"},
    "stowplan.kernel.workers.pool": {"WorkerPool.handle_messages": "waiting", "WorkerPool.close": "end of workers"},
    "stowplan.kernel.kind": {"Candidate.load": "imports"},
    f"{_HERE}.arrays": {"build": "conversion"},
    f"{_HERE}.candidates": {
        "export_plan": "conversion",
        "export_best": "conversion",
        "import_plan": "conversion",
        "ruin_and_recreate": "search",
        "solve_relaxation": "relaxation",
    },
    f"{_HERE}.heuristics": {"run": "insertion"},
    f"{_HERE}.guided": {"export_plan": "conversion", "learned_hint": "guide", "filled_hint": "guide", "run": "insertion"},
    "stowplan.compiled.functions": {"entry_of": "machine code"},
}  # fmt: skip


def folder(path: Path) -> Path:
    """A folder to put on the path of programs whose workers are to be traced."""
    path.mkdir(exist_ok=True)
    (path / "sitecustomize.py").write_text("from benchmarks.lib.stages import install\n\ninstall()\n")
    return path


def install() -> None:
    """Time functions from now on, where :data:`TRACE` names a file."""
    if os.environ.get(TRACE) and not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self._file = os.open(os.environ[TRACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._left = {name: each for name, each in STAGES.items() if name not in sys.modules}
        self.note("start", time.monotonic(), time.monotonic())

    def note(self, stage: str, began: float, ended: float) -> None:
        """Write one span."""
        import threading

        os.write(self._file, f"{os.getpid()} {threading.get_ident()} {began:.6f} {ended:.6f} {stage}\n".encode())

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        wanted = self._left.pop(name, None)
        spec = None if wanted is None else importlib.util.find_spec(name)
        if wanted is not None and spec is not None and spec.loader is not None:
            spec.loader = _Timed(spec.loader, wanted, self.note)
        return spec


class _Timed(Loader):
    def __init__(self, loader: Loader, wanted: dict[str, str], note: Callable[[str, float, float], None]):
        self._loader, self._wanted, self._note = loader, wanted, note

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for name, stage in self._wanted.items():
            *owners, last = name.split(".")
            owner: Any = functools.reduce(getattr, owners, module)
            if hasattr(owner, last):
                setattr(owner, last, _timed(getattr(owner, last), stage, self._note))


def _timed(function: Any, stage: str, note: Callable[[str, float, float], None]) -> Any:
    @functools.wraps(function)
    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return function(*arguments, **named)
        finally:
            note(stage, began, time.monotonic())

    return timed


def spent(trace: Path, begin: float, end: float) -> dict[tuple[int, str], float]:
    """Seconds between two moments by process and stage; a stage within another is counted once, as the inner one."""
    threads: dict[tuple[int, int], list[tuple[float, float, str]]] = defaultdict(list)
    for line in trace.read_text().splitlines():
        pid, thread, began, ended, stage = line.split(" ", 4)
        span = max(begin, float(began)), min(end, float(ended)), stage
        if span[0] < span[1]:
            threads[int(pid), int(thread)].append(span)
    found: dict[tuple[int, str], float] = defaultdict(float)
    for (process, _), spans in threads.items():
        around: list[tuple[float, float, str]] = []
        for span in sorted(spans, key=lambda each: (each[0], -each[1])):
            while around and around[-1][1] <= span[0]:
                around.pop()
            if around:
                found[process, around[-1][2]] -= span[1] - span[0]
            found[process, span[2]] += span[1] - span[0]
            around.append(span)
    return found
