"""Starts child processes of the package, exchanges messages with them, and ends them.

Such processes run the candidates of a call (:mod:`stowplan.kernel.workers`), the inputs of ``stowplan batch``, and ONNX's shape
inference. The functions that a child calls when it begins are in this module as well.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib.util
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import BinaryIO, cast

#: A worker process whose resident size after its work is larger than this, in bytes, is not reused for other work.
MAX_REUSE_MEMORY = 1 << 30

#: The option of Linux's ``prctl`` that sets the signal which a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1

_LENGTH_PREFIX = struct.Struct("<Q")

#: Maximum length of a message in bytes. A greater length means that something other than a message was written to the pipe.
_MAX_MESSAGE = 1 << 31


def child_environment() -> dict[str, str]:
    """Environment of a child process. Its ``PYTHONPATH`` makes it find modules where this process does, whatever its working
    directory."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def become_child(parent: int) -> tuple[BinaryIO, BinaryIO]:
    """Prepares this process, a new child, so that only its parent ends it. It ignores the signals that interrupt or terminate,
    and on Linux it is killed as soon as its parent has ended.

    Parameters
    ----------
    parent
        Process ID of the parent.

    Returns
    -------
    tuple
        Pipes from and to the parent, which were standard input and output. From now on standard input is empty, and printed
        text goes to standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            # Schedulers signal every process of a job, but it is the parent that decides when to end. The signals have handlers
            # and are not ignored, because processes that a worker starts would inherit that they are ignored.
            signal.signal(getattr(signal, name), lambda number, frame: None)
    _end_with_parent(parent)
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return incoming, outgoing


def _end_with_parent(parent: int) -> None:
    """Makes the kernel of the operating system kill this process when its parent ends. A thread of this process could not do so
    while code runs that blocks all other threads."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def write_encoded(stream: BinaryIO, data: bytes) -> None:
    """Sends a message, preceded by its length, and flushes the pipe; raises OSError if the reader has closed it."""
    stream.write(_LENGTH_PREFIX.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_message(stream: BinaryIO) -> bytes | None:
    """Waits for the next message.

    Parameters
    ----------
    stream
        A pipe.

    Returns
    -------
    bytes or None
        The message; None at the end of the stream, also if the stream ends within a message.

    Raises
    ------
    ValueError
        The length that precedes the message is more than 2 GiB, so that the data cannot be a message.
    OSError
        The pipe cannot be read.
    """
    head = stream.read(_LENGTH_PREFIX.size)
    if head is None or len(head) < _LENGTH_PREFIX.size:
        return None
    (length,) = _LENGTH_PREFIX.unpack(head)
    if length > _MAX_MESSAGE:
        raise ValueError(f"found a message of {length} bytes, expected at most {_MAX_MESSAGE}")
    data = stream.read(length)
    return data if data is not None and len(data) == length else None


class ChildProcess:
    """A child process with which this process exchanges messages. :meth:`kill` also kills all processes that the child has
    started.

    If the child calls :func:`become_child`, then on Linux it also ends when the thread that started it ends.

    Parameters
    ----------
    module
        The module to run: ``python -m MODULE``.
    arguments
        Arguments of the module.
    environment
        Environment variables; by default the result of :func:`child_environment`.
    is_quiet
        Whether to discard what the child prints, unless ``STOWPLAN_DEBUG`` is set.

    Raises
    ------
    OSError
        The system cannot start another process.
    """

    def __init__(
        self, module: str, *arguments: str, environment: Mapping[str, str] | None = None, is_quiet: bool = True
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if is_quiet and not os.environ.get("STOWPLAN_DEBUG") else None,
            env=child_environment() if environment is None else environment,
            # In a session of its own the child is not interrupted by Ctrl-C at the terminal, and its whole process group can be
            # killed.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._incoming, self._outgoing = cast(BinaryIO, self._process.stdout), cast(BinaryIO, self._process.stdin)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def send(self, data: bytes) -> None:
        """Sends a message; raises OSError if the process has ended."""
        write_encoded(self._outgoing, data)

    def receive(self) -> bytes | None:
        """Waits for the next message; returns None and raises errors as :func:`read_message` does."""
        return read_message(self._incoming)

    def kill(self) -> None:
        """Kills the process and all processes that it has started."""
        # The process has not been waited for, so its ID cannot belong to another process yet.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kills the process if it still runs, and returns its exit status."""
        # The signal does not change the exit status of a process that has ended already, and the processes that it started must
        # not be left behind.
        self.kill()
        return self._process.wait()

    def close(self) -> None:
        """Closes the pipes, once nobody reads or writes them any more."""
        with contextlib.suppress(OSError):
            self._outgoing.close()
        self._incoming.close()


def describe_end(code: int) -> str:
    """Describes, for a message, the end of a process that did not send its last report.

    ``code`` is its exit status, or minus the number of the signal that killed it.
    """
    if code >= 0:
        return f"its process ended without a last word, with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = ", as the kernel does where memory runs out" if name == "SIGKILL" else ""
    return f"its process was ended by signal {name}{hint}"


#: Thresholds for :func:`gc.set_threshold`. The first is the number of new objects after which the collector runs. With Python's
#: default of 700 it runs more than a thousand times while solvers are imported. The others are Python's own.
_GC_THRESHOLDS = 100_000, 10, 10


@cache
def collect_garbage_seldom() -> None:
    """Runs the garbage collector seldom, and not at all at exit.

    This saves a fifth of the time that a small problem takes on the command line, because imported modules are full of
    reference cycles and none of them is garbage. It is not meant for processes in which other code may rely on Python's default
    settings.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
    # Exit handlers run in reverse order: the collector is disabled, then all objects are exempted, before the interpreter
    # collects the objects that are left.
    atexit.register(gc.freeze)
    atexit.register(gc.disable)


#: The module of CP-SAT, the constraint solver of OR-Tools. More than half of its import time is for pandas, which only a few of
#: its methods need: the ones that accept a ``pandas.Series`` or ``pandas.Index``. No model of this package uses them.
CP_MODEL = "ortools.sat.python.cp_model"


def light_imports() -> None:
    """Makes later imports of :data:`CP_MODEL` skip pandas, unless the module is imported already.

    The methods of CP-SAT that accept a ``pandas.Series`` then refuse it. This is not meant for processes in which other code
    may use pandas.
    """
    if CP_MODEL not in sys.modules and not any(isinstance(finder, _CpsatFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _CpsatFinder())


class _CpsatFinder(MetaPathFinder):
    """Finds :data:`CP_MODEL` once and gives it a loader that hides pandas."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != CP_MODEL:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _LoaderWithoutPandas(spec.loader)
        return spec


class _LoaderWithoutPandas(Loader):
    """Loads a module with a nearly empty module in place of pandas. If the module needs more of pandas, it is loaded again with
    the real one."""

    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Executes the module with the stand-in, and again with the real package if that fails."""
        if "pandas" not in sys.modules:
            stand_in = ModuleType("pandas")
            stand_in.__dict__.update(Index=type("Index", (), {}), Series=type("Series", (), {}))
            sys.modules["pandas"] = stand_in
            try:
                self._loader.exec_module(module)
                return
            except AttributeError:
                # This version of OR-Tools uses more of pandas than the stand-in has.
                pass
            finally:
                del sys.modules["pandas"]
        self._loader.exec_module(module)
