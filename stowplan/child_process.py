"""Processes that the package starts: what they are started with, how they begin, what they are told, and how they end."""

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

#: Bytes that a process may hold to be kept for other work.
MOST_KEPT_MEMORY = 1 << 30

_PR_SET_PDEATHSIG = 1

_LENGTH = struct.Struct("<Q")

#: Longer than any message; a length beyond it means that something else was written.
_MAX_MESSAGE = 1 << 31


def child_environment() -> dict[str, str]:
    """Environment of a child: it finds its modules where this process does, not in the folder it happens to be started from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def begin(parent: int) -> tuple[BinaryIO, BinaryIO]:
    """Make this process a child that its parent alone ends.

    Parameters
    ----------
    parent
        Number of the process that has started it.

    Returns
    -------
    tuple
        Pipes from and to the parent: what were standard input and output. Whoever reads standard input now finds nothing, and
        what is printed goes to standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            # Schedulers signal every process of a job: it is for the parent to say when to end. What a worker starts is not to
            # inherit it, so that the signals are handled, not ignored.
            signal.signal(getattr(signal, name), lambda number, frame: None)
    _end_with_parent(parent)
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return incoming, outgoing


def _end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, for code that lets no other thread run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def write_encoded(stream: BinaryIO, data: bytes) -> None:
    """Send a message, its length in front, and flush the pipe; raises OSError where nobody reads at the other end."""
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_message(stream: BinaryIO) -> bytes | None:
    """Wait for the next message.

    Parameters
    ----------
    stream
        A pipe.

    Returns
    -------
    bytes or None
        The message; None at the end, also where the end cuts a message short.

    Raises
    ------
    ValueError
        This is not the beginning of a message.
    """
    head = stream.read(_LENGTH.size)
    if head is None or len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_MESSAGE:
        raise ValueError(f"found a message of {length} bytes, expected at most {_MAX_MESSAGE}")
    data = stream.read(length)
    return data if data is not None and len(data) == length else None


class ChildProcess:
    """A process that is sent messages and answers with messages, and all that it has started.

    It ends with the thread that has started it where it calls :func:`begin`.

    Parameters
    ----------
    module
        What it runs: ``python -m MODULE``.
    arguments
        Of the module.
    environment
        That of :func:`child_environment` by default.
    is_quiet
        Whether what it prints is left out, but for ``STOWPLAN_DEBUG``.

    Raises
    ------
    OSError
        The system has no room for another process.
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
            # A session of its own: Ctrl-C at the terminal is for the parent, and what it starts ends with it.
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._incoming, self._outgoing = cast(BinaryIO, self._process.stdout), cast(BinaryIO, self._process.stdin)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def send(self, data: bytes) -> None:
        """Send a message; raises OSError where it has ended."""
        write_encoded(self._outgoing, data)

    def receive(self) -> bytes | None:
        """Wait for the next message, as :func:`read_message` does."""
        return read_message(self._incoming)

    def kill(self) -> None:
        """End it and whatever it has started, whatever it is doing."""
        # Nobody has waited for it yet, so that its number cannot belong to another.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def end(self) -> int:
        """Kill it where it has not ended, and return its exit status."""
        # A signal does not change how a process ends that is about to; what it has started must not stay behind.
        self.kill()
        return self._process.wait()

    def close(self) -> None:
        """Free the pipes, once nobody reads or writes."""
        with contextlib.suppress(OSError):
            self._outgoing.close()
        self._incoming.close()


def describe_end(code: int) -> str:
    """How a process ended that gave no last report, by its exit status; of one that was killed, minus the signal."""
    if code >= 0:
        return f"its process ended without a last word, with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = ", as the kernel does where memory runs out" if name == "SIGKILL" else ""
    return f"its process was ended by signal {name}{hint}"


#: Objects that are made before cycles among the youngest are looked for, and how often those come before the next older ones.
#: Python's own 700 has it look more than a thousand times while solvers are imported.
_THRESHOLDS = 100_000, 10, 10


@cache
def collect_seldom() -> None:
    """Look for cycles of garbage seldom, and not once more at the end.

    That is a fifth of what a small problem takes on the command line: modules are full of cycles, none of which is garbage.
    Not for processes in which others may count on Python's own ways.
    """
    gc.set_threshold(*_THRESHOLDS)
    # In this order at the end, before the interpreter looks for cycles in all that is left.
    atexit.register(gc.freeze)
    atexit.register(gc.disable)


#: CP-SAT, which imports pandas for a few methods that take its series and indices: more than half of what importing it takes.
#: None of the models here has a series.
CP_MODEL = "ortools.sat.python.cp_model"


def light_imports() -> None:
    """From now on :data:`CP_MODEL` is imported without pandas, where it is not there yet.

    Methods of CP-SAT for series then refuse them. Not for processes in which others may want pandas.
    """
    if CP_MODEL not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the module, once."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != CP_MODEL:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithoutPandas(spec.loader)
        return spec


class _WithoutPandas(Loader):
    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if "pandas" not in sys.modules:
            stand_in = ModuleType("pandas")
            stand_in.__dict__.update(Index=type("Index", (), {}), Series=type("Series", (), {}))
            sys.modules["pandas"] = stand_in
            try:
                self._loader.exec_module(module)
                return
            except AttributeError:
                # Another version, which wants more of it.
                pass
            finally:
                del sys.modules["pandas"]
        self._loader.exec_module(module)
