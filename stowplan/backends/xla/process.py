"""The parent's side of a compiling process: it starts the process, sends requests and receives answers through pipes.

The process runs :mod:`stowplan.backends.xla.child`, and has limits on its memory and its time. *libtpu* is the compiler for
TPUs.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import tempfile

import msgspec

from stowplan.backends.xla.child import Answer, Done, Request
from stowplan.deadline import Deadline
from stowplan.errors import StowplanError, TimeLimitError, brief
from stowplan.process_memory import resident

#: Seconds between checks of the process's memory while an answer is awaited.
_POLL = 0.25

#: The line in which libtpu says why it ends the process.
_CHECK = re.compile(r"Check failed: [^\n]*")


class CompileError(StowplanError):
    """XLA refused to compile, or the function could not be traced; the message is that of XLA or jax, shortened."""

    def __init__(self, message: str):
        super().__init__(brief(message))


class AbortError(CompileError):
    """An internal check of libtpu failed, and it ended the process."""


class CompilingProcess:
    """A child process that compiles for this process, with pipes and limits; any error in :meth:`ask` ends it.

    Parameters
    ----------
    command
        Command that starts it.
    accelerator
        Type of the accelerator, as libtpu calls it.
    memory_limit, compile_limit
        Bytes of memory that it may use, and seconds for each request.
    name
        Name of the function that it compiles, for messages.
    """

    def __init__(self, command: tuple[str, ...], accelerator: str, memory_limit: int, compile_limit: float, name: str):
        self._memory_limit = memory_limit
        self._compile_limit = compile_limit
        self._name = name
        self.resident = 0
        """Peak resident memory of the process, in bytes."""
        self.is_alive = True
        """Whether the process can serve requests."""
        request_end, self._requests = os.pipe()
        self._answers, answer_end = os.pipe()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
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
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=(request_end, answer_end),
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(request_end)
            os.close(answer_end)
        self._buffer = b""

    def ask(self, request: Request, deadline: Deadline) -> Answer:
        """Send a request and return the answer. A failed compilation is an answer, too, and no error.

        Raises
        ------
        TimeLimitError
            The answer took longer than one compilation may take, or than the deadline allows.
        CompileError
            The process used more memory than it may, or it died in this request or in an earlier one. It is an AbortError if an
            internal check of libtpu failed.
        """
        if not self.is_alive:
            raise CompileError(f"{self._name}: the compiling process has ended")
        limit = deadline.within(self._compile_limit)
        try:
            self._send(request)
            answer = self._receive(limit)
        except BaseException:
            self.end()
            raise
        if answer is None:
            self.end()
            if deadline.expired:
                raise TimeLimitError(f"{self._name}: the time was over before XLA had finished")
            raise TimeLimitError(f"{self._name}: XLA took longer than the {self._compile_limit:g} s of one compile")
        if isinstance(answer, Done):
            self.resident = answer.resident_bytes
        return answer

    def _send(self, request: Request) -> None:
        """Send a request. If the process is dead, :meth:`_receive` reports that."""
        data = memoryview(msgspec.json.encode(request) + b"\n")
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._requests, data) :]

    def _receive(self, limit: Deadline) -> Answer | None:
        """Receive the answer; None if the time limit is reached first. Raises CompileError as :meth:`ask` does."""
        while b"\n" not in self._buffer:
            if limit.expired:
                return None
            ready, _, _ = select.select([self._answers], [], [], min(_POLL, limit.remaining))
            if ready:
                data = os.read(self._answers, 1 << 16)
                if not data:
                    raise self._ended()
                self._buffer += data
            elif resident(self._process.pid) > self._memory_limit:
                raise CompileError(f"the compiling process used more than {self._memory_limit / (1 << 30):.3g} GiB")
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: Answer = msgspec.json.decode(line, type=Answer)
        return answer

    def _ended(self) -> CompileError:
        """Returns the error for a process that has ended, with its last output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)
        self._output.seek(0)
        output = self._output.read()[-20_000:].decode(errors="replace").strip()
        check = _CHECK.search(output)
        if check is not None:
            return AbortError(f"libtpu ended: {check[0]}")
        return CompileError(f"the compiling process ended: {output[-2000:] or f'exit status {self._process.returncode}'}")

    def end(self) -> None:
        """Kill the process and close the pipes."""
        if not self.is_alive:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.is_alive = False
        for descriptor in (self._requests, self._answers):
            os.close(descriptor)
        self._output.close()
