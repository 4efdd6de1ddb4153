"""Compiles one program with many sets of XLA options, in child processes; results are stored on disk.

A *preview* is a compilation that ends right after memory-space assignment, XLA's placement of values in fast memory.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from stowplan.backends.xla.child import Answer, Compile, Done, Failed, Lower, Option, Preview, Previewed
from stowplan.backends.xla.process import AbortError, CompileError, CompilingProcess
from stowplan.backends.xla.store import Compiled, Record, WorkloadStore, result_key
from stowplan.backends.xla.workload import Workload, versions
from stowplan.deadline import Deadline
from stowplan.errors import TimeLimitError, UsageError
from stowplan.hardware.targets import xla_chip

#: Default limits: seconds for one compilation, and bytes of memory of a compiling process.
COMPILE_LIMIT, MEMORY_LIMIT = 900.0, 16 << 30

#: A child process with more memory than this, in bytes, is replaced before the next compilation, because libtpu leaks some
#: memory.
_REPLACE_ABOVE = 4 << 30

#: Command that starts a child process; the numbers of two inherited descriptors follow, see :mod:`stowplan.backends.xla.child`.
CHILD_COMMAND: tuple[str, ...] = (sys.executable, "-m", "stowplan.backends.xla.child")


class Compiler:
    """Compiles one workload ahead of time with many different options. It is a context manager.

    Parameters
    ----------
    workload
        The function to compile, with the shapes of its arguments.
    target
        Name of the target machine, see :func:`stowplan.hardware.targets.xla_chip`.
    folder
        Folder in which results are stored and looked up; None for a temporary one.
    compile_limit
        Seconds that one compilation may take.
    memory_limit
        Bytes of memory that a compiling process may use.
    options
        Compiler options of all compilations, in addition to the options of each one, which take precedence.
    command
        Command that starts a child process; None for :data:`CHILD_COMMAND`.

    Raises
    ------
    MissingDependencyError
        Jax or libtpu is not installed.
    UsageError
        XLA does not compile for the target, or a limit is not positive.
    InputError
        There is no such target.
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
        """Options of all compilations."""
        self.versions = versions()
        self._chip = xla_chip(target)
        self._compile_limit = compile_limit
        self._memory_limit = memory_limit
        self._command = tuple(command or CHILD_COMMAND)
        self._temporary = tempfile.TemporaryDirectory(prefix="stowplan-xla-") if folder is None else None
        self._folder = Path(self._temporary.name if self._temporary else folder or ".")
        self._idle: list[CompilingProcess] = []
        self._previewing: CompilingProcess | None = None
        self._lock = threading.Lock()
        self._store: WorkloadStore | None = None
        self._digest = ""
        self.compiles = 0
        """How many compilations were run; previews and results that were found in the folder do not count."""
        self.processor_seconds = 0.0
        """CPU time of compilations and previews, in seconds."""

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all child processes and remove the temporary folder, if there is one."""
        for process in self._idle:
            process.end()
        self._idle.clear()
        if self._previewing is not None:
            self._previewing.end()
        if self._temporary is not None:
            self._temporary.cleanup()

    def start(self, deadline: Deadline | None = None) -> WorkloadStore:
        """Lower the workload, unless that was done already; returns the store of its results.

        Raises
        ------
        CompileError
            The function cannot be imported or traced, or the compiling process died or used more memory than it may.
        UsageError
            Libtpu does not know the machine's topology, or the mesh or a partition of the function does not fit it.
        TimeLimitError
            Lowering took longer than a compilation may take, or than the deadline allows.
        InputError
            The folder of the results cannot be made.
        """
        if self._store is None:
            with self._process(deadline or Deadline()):
                pass
            self._store = WorkloadStore(self._folder, self.workload.name, self._digest)
        return self._store

    def find(self, options: Mapping[str, Option]) -> Compiled | None:
        """Returns the stored result for these options; None if there is none. Raises the errors of :meth:`start`."""
        return self.start().find(result_key({**self.options, **options}, self.versions, self._chip.machine))

    def compile(self, options: Mapping[str, Option], deadline: Deadline | None = None) -> Compiled:
        """Returns the result for these options: a stored one, or a new one.

        Returns
        -------
        Compiled
            If the compiler refuses these options or the program, ``error`` is its message; such a result is stored as well.

        Raises
        ------
        TimeLimitError
            The compilation took longer than it may, or than the deadline allows, or the deadline was cancelled.
        CompileError
            The compiling process used more memory than it may, or died, or the function cannot be lowered, or another process
            lowered it differently.
        UsageError
            See :meth:`start`.
        InputError
            The result cannot be stored.
        """
        deadline = deadline or Deadline()
        options = {**self.options, **options}
        store = self.start(deadline)
        stored = self.find(options)
        if stored is not None:
            return stored
        with store.scratch() as scratch, self._process(deadline) as process:
            try:
                answer = process.ask(Compile(dict(options), str(scratch)), deadline)
            except AbortError as aborted:
                # libtpu ends its process instead of raising an error. It would do so again, so this is stored as a result.
                answer = Failed(str(aborted), "compile")
            with self._lock:
                self.compiles += 1
            return store.keep(scratch, self._record(options, answer))

    def _record(self, options: Mapping[str, Option], answer: Answer) -> Record:
        """The record of a result, from the answer of the child process; its CPU time is counted."""
        if isinstance(answer, Done):
            with self._lock:
                self.processor_seconds += answer.processor_seconds
        return record_of(answer, options, self.versions, self._chip.machine, self._digest)

    def compile_all(
        self, wanted: Sequence[Mapping[str, Option]], deadline: Deadline | None = None
    ) -> list[Compiled | CompileError | TimeLimitError]:
        """Compiles with several sets of options at the same time, each in its own process.

        Returns
        -------
        list
            For each set of options, in their order, the result or the error. Other errors of :meth:`compile` are raised.
        """

        def compile_one(options: Mapping[str, Option]) -> Compiled | CompileError | TimeLimitError:
            try:
                return self.compile(options, deadline)
            except (CompileError, TimeLimitError) as error:
                return error

        if len(wanted) < 2:
            return [compile_one(options) for options in wanted]
        with ThreadPoolExecutor(len(wanted)) as pool:
            return list(pool.map(compile_one, wanted))

    def previews(self, wanted: Sequence[Mapping[str, Option]], deadline: Deadline | None = None) -> list[Compiled]:
        """Makes previews, that is, compilations that end after memory-space assignment.

        A preview has no estimates of cycles, but takes a small part of the time of a compilation. As many run at the same time
        as there are cores. Previews are stored like other results.

        Returns
        -------
        list of Compiled
            A result for each set of options, in their order; ``error`` has a message if there is no preview.

        Raises
        ------
        TimeLimitError, CompileError, UsageError, InputError
            See :meth:`compile`.
        """
        deadline = deadline or Deadline()
        store = self.start(deadline)
        all_options = [{**self.options, **options} for options in wanted]
        results = {}
        with contextlib.ExitStack() as stack:
            new = []
            for number, options in enumerate(all_options):
                stored = store.find(result_key(options, self.versions, self._chip.machine), preview=True)
                if stored is None:
                    new.append((number, options, stack.enter_context(store.scratch())))
                else:
                    results[number] = stored
            compiles = [Compile(options, str(scratch)) for _, options, scratch in new]
            for (number, options, scratch), answer in zip(new, self._ask_previews(compiles, deadline), strict=True):
                if isinstance(answer, Done) and answer.digest != self._digest:
                    raise CompileError(self._lowered_differently())
                record = self._record(options, answer)
                # A process that ended without an answer may succeed the next time, so that its result is not stored.
                is_kept = isinstance(answer, Done) or answer.stage != "end"
                results[number] = store.keep(scratch, record, preview=True) if is_kept else Compiled(scratch, record)
        return [results[number] for number in range(len(all_options))]

    def _ask_previews(self, compiles: list[Compile], deadline: Deadline) -> list[Done | Failed]:
        """Have one child process make previews; returns an answer for each. Raises CompileError or TimeLimitError."""
        if not compiles:
            return []
        if self._previewing is None or not self._previewing.is_alive:
            self._previewing = self._new_process()
        answer = self._previewing.ask(Preview(self._lower, compiles, len(os.sched_getaffinity(0))), deadline)
        if not isinstance(answer, Previewed):
            raise CompileError(f"{self.workload.name}: the compiling process ended")
        return answer.answers

    @contextlib.contextmanager
    def _process(self, deadline: Deadline) -> Iterator[CompilingProcess]:
        """A process that has lowered the workload; it is used for the next compilation as well, unless something failed."""
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
        """A new process that has lowered the workload.

        Raises CompileError if the digest of the lowered program differs from that of earlier processes.
        """
        process = self._new_process()
        answer = process.ask(self._lower, deadline)
        if isinstance(answer, Failed):
            process.end()
            raise not_lowered(answer, self.workload.name, self._chip.machine)
        with self._lock:
            if isinstance(answer, Done) and self._digest not in ("", answer.digest):
                process.end()
                raise CompileError(self._lowered_differently())
            self._digest = answer.digest if isinstance(answer, Done) else ""
        return process

    @property
    def _lower(self) -> Lower:
        return Lower(self.workload, self._chip.topology, self._chip.config)

    def _new_process(self) -> CompilingProcess:
        return CompilingProcess(
            self._command, self._chip.accelerator, self._memory_limit, self._compile_limit, self.workload.name
        )

    def _lowered_differently(self) -> str:
        return f"{self.workload.name}: lowered differently the second time; does it depend on chance or time?"


def record_of(
    answer: Answer, options: Mapping[str, Option], compiled_by: Mapping[str, str], machine: str, digest: str
) -> Record:
    """Returns the record of a result, which is stored with it and says how it was made.

    Parameters
    ----------
    answer
        The answer of the child process.
    options
        The compiler options.
    compiled_by
        The versions of the packages that compiled it.
    machine
        Name of the machine under which results are stored (:attr:`stowplan.hardware.targets.XlaChip.machine`).
    digest
        Digest of the lowered function.
    """
    done = answer if isinstance(answer, Done) else Done()
    return Record(
        options=dict(sorted(options.items())),
        versions=dict(compiled_by),
        topology=machine,
        workload=digest,
        processor_seconds=round(done.processor_seconds, 3),
        seconds=round(done.seconds, 3),
        hbm_bytes=done.hbm_bytes,
        error=(answer.message or "no message") if isinstance(answer, Failed) else "",
    )


def not_lowered(answer: Failed, name: str, machine: str) -> UsageError | CompileError:
    """Returns the error to raise if a function could not be lowered: a UsageError if devices or partitions are at fault."""
    if answer.stage == "place":
        return UsageError(f"{name} on {machine}: {answer.message}")
    return CompileError(f"{name}: cannot {answer.stage} the function: {answer.message}")
