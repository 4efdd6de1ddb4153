"""XLA as a function from compiler options to a compiled module: one child process, many compiles, results kept on disk."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from stowplan.backends.xla.child import Compile, Done, Failed, Lower, Option
from stowplan.backends.xla.process import AbortError, CompileError, CompilingProcess
from stowplan.backends.xla.store import Compiled, Record, WorkloadStore, result_key
from stowplan.backends.xla.workload import Workload, versions
from stowplan.deadline import Deadline
from stowplan.errors import TimeLimitError, UsageError
from stowplan.hardware.targets import xla_chip

#: Seconds that one compile may take, and bytes of memory that the compiling process may have, unless told otherwise.
COMPILE_LIMIT, MEMORY_LIMIT = 900.0, 16 << 30

#: A child that has grown beyond this (bytes) is replaced before the next compile: libtpu keeps some memory of each.
_REPLACE_ABOVE = 4 << 30

#: What is run to compile; two numbers of inherited descriptors follow, see :mod:`stowplan.backends.xla.child`.
CHILD_COMMAND: tuple[str, ...] = (sys.executable, "-m", "stowplan.backends.xla.child")


class Compiler:
    """Compiles one workload ahead of time, again and again; a context manager.

    Parameters
    ----------
    workload
        What is compiled.
    target
        Name of the machine, see :func:`stowplan.hardware.targets.xla_chip`.
    folder
        Where results are kept and looked for; a temporary one where None.
    compile_limit
        Seconds that one compile may take.
    memory_limit
        Bytes that the compiling process may have.
    options
        Options of every compile, beside those that it is asked for.
    command
        What is run to compile, in place of :data:`CHILD_COMMAND`.

    Raises
    ------
    MissingDependencyError
        Without jax or libtpu.
    UsageError
        A target that XLA does not compile for, or limits that are not positive.
    """

    def __init__(
        self,
        workload: Workload,
        *,
        target: str = "tpu-v4",
        folder: str | Path | None = None,
        compile_limit: float = COMPILE_LIMIT,
        memory_limit: int = MEMORY_LIMIT,
        options: Mapping[str, Option] | None = None,
        command: Sequence[str] | None = None,
    ):
        if not compile_limit > 0 or memory_limit <= 0:
            raise UsageError(f"found limits of {compile_limit} s and {memory_limit} bytes, expected positive ones")
        self.workload = workload
        self.target = target
        self.options = dict(options or {})
        """Options of every compile."""
        self.versions = versions()
        self._chip = xla_chip(target)
        self._compile_limit = compile_limit
        self._memory_limit = memory_limit
        self._command = tuple(command or CHILD_COMMAND)
        self._temporary = tempfile.TemporaryDirectory(prefix="stowplan-xla-") if folder is None else None
        self._folder = Path(self._temporary.name if self._temporary else folder or ".")
        self._idle: list[CompilingProcess] = []
        self._lock = threading.Lock()
        self._store: WorkloadStore | None = None
        self._digest = ""
        self.compiles = 0
        """Compiles that were run, not found."""
        self.processor_seconds = 0.0
        """What those took."""

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the child and remove a temporary folder."""
        for process in self._idle:
            process.end()
        self._idle.clear()
        if self._temporary is not None:
            self._temporary.cleanup()

    def start(self, deadline: Deadline | None = None) -> WorkloadStore:
        """Lower the workload, once; where its results are kept.

        Raises
        ------
        CompileError
            The function cannot be imported or traced.
        TimeLimitError
            It took longer than a compile may take, or than the deadline allows.
        """
        if self._store is None:
            with self._process(deadline or Deadline()):
                pass
            self._store = WorkloadStore(self._folder, self.workload.name, self._digest)
        return self._store

    def find(self, options: Mapping[str, Option]) -> Compiled | None:
        """The kept result for these options, if there is one."""
        return self.start().find(result_key({**self.options, **options}, self.versions, self._chip.machine))

    def compile(
        self, options: Mapping[str, Option], deadline: Deadline | None = None, alike: Iterable[Compiled] = ()
    ) -> Compiled:
        """The result for these options: found, or compiled now.

        Where the assignment comes out as in one of ``alike``, results of options that change nothing after it, the rest of
        the compile is left out.

        Returns
        -------
        Compiled
            With the compiler's message in ``error``, where it refuses these options or the program; that is kept, too.

        Raises
        ------
        TimeLimitError
            The compile took longer than it may, or than the deadline allows; also when that was cancelled.
        CompileError
            The compiling process used more memory than it may, or died.
        """
        deadline = deadline or Deadline()
        options = {**self.options, **options}
        store = self.start(deadline)
        found = self.find(options)
        if found is not None:
            return found
        with store.scratch() as scratch, self._process(deadline) as process:
            try:
                known = {each.assignment_digest: str(each.folder) for each in alike if not each.error}
                answer = process.ask(Compile(dict(options), str(scratch), known), deadline)
            except AbortError as aborted:
                # libtpu ends its process where others raise; it would do so again, so that this is a result, too.
                answer = Failed(str(aborted), "compile")
            done = isinstance(answer, Done)
            with self._lock:
                self.compiles += 1
                self.processor_seconds += answer.processor_seconds if isinstance(answer, Done) else 0.0
            record = Record(
                options=dict(sorted(options.items())),
                versions=self.versions,
                topology=self._chip.machine,
                workload=self._digest,
                processor_seconds=round(answer.processor_seconds, 3) if isinstance(answer, Done) else 0.0,
                seconds=round(answer.seconds, 3) if isinstance(answer, Done) else 0.0,
                error="" if done or not isinstance(answer, Failed) else answer.message or "no message",
            )
            return store.keep(scratch, record)

    def compile_all(
        self, wanted: Sequence[tuple[Mapping[str, Option], Iterable[Compiled]]], deadline: Deadline | None = None
    ) -> list[Compiled | CompileError | TimeLimitError]:
        """Several results side by side, each in a process of its own, in the order asked; errors stand in their places."""

        def one(asked: tuple[Mapping[str, Option], Iterable[Compiled]]) -> Compiled | CompileError | TimeLimitError:
            options, alike = asked
            try:
                return self.compile(options, deadline, alike)
            except (CompileError, TimeLimitError) as error:
                return error

        if len(wanted) < 2:
            return [one(each) for each in wanted]
        with ThreadPoolExecutor(len(wanted)) as pool:
            return list(pool.map(one, wanted))

    @contextlib.contextmanager
    def _process(self, deadline: Deadline) -> Iterator[CompilingProcess]:
        """A process that has lowered the workload; it is kept for the next compile unless something went wrong."""
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is not None and process.resident > _REPLACE_ABOVE:
            process.end()
            process = None
        process = process or self._lowered(deadline)
        try:
            yield process
        finally:
            with self._lock:
                if process.is_alive:
                    self._idle.append(process)

    def _lowered(self, deadline: Deadline) -> CompilingProcess:
        process = CompilingProcess(
            self._command, self._chip.accelerator, self._memory_limit, self._compile_limit, self.workload.name
        )
        answer = process.ask(Lower(self.workload, self._chip.topology, self._chip.config), deadline)
        if isinstance(answer, Failed):
            process.end()
            if answer.stage == "place":
                raise UsageError(f"{self.workload.name} on {self._chip.machine}: {answer.message}")
            raise CompileError(f"{self.workload.name}: cannot {answer.stage} the function: {answer.message}")
        with self._lock:
            if self._digest not in ("", answer.digest):
                process.end()
                raise CompileError(
                    f"{self.workload.name}: lowered differently the second time; does it depend on chance or time?"
                )
            self._digest = answer.digest
        return process
