"""XLA as a function from compiler options to a compiled module: one child process, many compiles, results kept on disk."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from stowplan.backends.xla.child import Answer, Compile, Done, Failed, Lower, Option, Request
from stowplan.backends.xla.store import Compiled, Record, WorkloadStore, result_key
from stowplan.backends.xla.workload import Workload, versions
from stowplan.deadline import Deadline
from stowplan.errors import StowplanError, TimeLimitError, UsageError, brief
from stowplan.hardware.targets import xla_chip
from stowplan.portfolio.run.process_memory import resident

#: Seconds that one compile may take, and bytes of memory that the compiling process may have, unless told otherwise.
COMPILE_LIMIT, MEMORY_LIMIT = 900.0, 16 << 30

#: A child that has grown beyond this (bytes) is replaced before the next compile: libtpu keeps some memory of each.
_REPLACE_ABOVE = 4 << 30

_POLL = 0.25

#: How libtpu says why it ends the process.
_CHECK = re.compile(r"Check failed: [^\n]*")

#: What is run to compile; two numbers of inherited descriptors follow, see :mod:`stowplan.backends.xla.child`.
CHILD_COMMAND: tuple[str, ...] = (sys.executable, "-m", "stowplan.backends.xla.child")


class CompileError(StowplanError):
    """XLA refused, or the function could not be traced; the message is its own, shortened."""

    def __init__(self, message: str):
        super().__init__(brief(message))


class AbortError(CompileError):
    """libtpu found something that it takes for impossible, and ended the process."""


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
        self._child: _Child | None = None
        self._resident = 0
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
        self._end()
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
            self._lower(deadline or Deadline())
            self._store = WorkloadStore(self._folder, self.workload.name, self._digest)
        return self._store

    def find(self, options: Mapping[str, Option]) -> Compiled | None:
        """The kept result for these options, if there is one."""
        return self.start().find(result_key({**self.options, **options}, self.versions, self._chip.machine))

    def compile(self, options: Mapping[str, Option], deadline: Deadline | None = None) -> Compiled:
        """The result for these options: found, or compiled now.

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
        if self._child is None or self._resident > _REPLACE_ABOVE:
            self._end()
            self._lower(deadline)
        with store.scratch() as scratch:
            try:
                answer = self._ask(Compile(dict(options), str(scratch)), deadline)
            except AbortError as aborted:
                # libtpu ends its process where others raise; it would do so again, so that this is a result, too.
                answer = Failed(str(aborted), "compile")
            done = isinstance(answer, Done)
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

    def _lower(self, deadline: Deadline) -> None:
        answer = self._ask(Lower(self.workload, self._chip.topology, self._chip.config), deadline)
        if isinstance(answer, Failed):
            if answer.stage == "place":
                raise UsageError(f"{self.workload.name} on {self._chip.machine}: {answer.message}")
            raise CompileError(f"{self.workload.name}: cannot {answer.stage} the function: {answer.message}")
        if self._digest not in ("", answer.digest):
            raise CompileError(f"{self.workload.name}: lowered differently the second time; does it depend on chance or time?")
        self._digest = answer.digest

    def _ask(self, request: Request, deadline: Deadline) -> Answer:
        if self._child is None:
            self._child = _Child(self._command, self._chip.accelerator)
        child = self._child
        limit = deadline.within(self._compile_limit)
        try:
            child.send(request)
            answer = child.receive(limit, self._memory_limit)
        except BaseException:
            self._end()
            raise
        if answer is None:
            self._end()
            if deadline.expired:
                raise TimeLimitError(f"{self.workload.name}: the time was over before XLA had finished")
            raise TimeLimitError(f"{self.workload.name}: XLA took longer than the {self._compile_limit:g} s of one compile")
        if isinstance(answer, Done):
            self._resident = answer.resident_bytes
        return answer

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


class _Child:
    """A compiling process and the pipes to it."""

    def __init__(self, command: tuple[str, ...], accelerator: str):
        request_end, self._requests = os.pipe()
        self._answers, answer_end = os.pipe()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_LOG_DIR": "disabled",
            "TPU_MIN_LOG_LEVEL": "3",
            "TPU_STDERR_LOG_LEVEL": "3",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_ACCELERATOR_TYPE": accelerator,
            "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
        }
        try:
            self._process = subprocess.Popen(
                [*command, str(request_end), str(answer_end)],
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                pass_fds=(request_end, answer_end),
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(request_end)
            os.close(answer_end)
        self._buffer = b""

    def send(self, request: Request) -> None:
        """Hand over a request; one to a dead process is answered by :meth:`receive`."""
        data = memoryview(msgspec.json.encode(request) + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._requests, data) :]

    def receive(self, limit: Deadline, memory_limit: int) -> Answer | None:
        """The answer; None when the limit is over first."""
        while b"\n" not in self._buffer:
            if limit.expired:
                return None
            ready, _, _ = select.select([self._answers], [], [], min(_POLL, limit.remaining))
            if ready:
                data = os.read(self._answers, 1 << 16)
                if not data:
                    raise self._ended()
                self._buffer += data
            elif resident(self._process.pid) > memory_limit:
                raise CompileError(f"the compiling process used more than {memory_limit / (1 << 30):.3g} GiB")
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: Answer = msgspec.json.decode(line, type=Answer)
        return answer

    def _ended(self) -> CompileError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        self._said.seek(0)
        words = self._said.read()[-20_000:].decode(errors="replace").strip()
        check = _CHECK.search(words)
        if check is not None:
            return AbortError(f"libtpu ended: {check[0]}")
        return CompileError(f"the compiling process ended: {words[-2000:] or f'exit status {self._process.returncode}'}")

    def kill(self) -> None:
        """End it, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for descriptor in (self._requests, self._answers):
            os.close(descriptor)
        self._said.close()
