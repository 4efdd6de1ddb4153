"""The command line: its entry point, its handling of signals, and its exit codes.

Results go to standard output; progress and errors go to standard error. SIGTERM and SIGHUP are handled like Ctrl-C, because
``timeout``, Slurm and CI systems send SIGTERM, and a terminal that is closed sends SIGHUP. Both may be sent more than once. The
library itself installs no signal handlers.

A command raises an error of :mod:`stowplan.errors` if an option or an input is wrong, and ``typer.Exit`` if it ends with
another exit code than 0. :func:`main` prints the error and ends the process with the exit code.

A module imports only modules that come before it in this list:

- ``app``: all commands in one place
- ``options``: options of commands
- ``output``: output on the two standard streams
- ``outputs``: files that commands write
- ``plan_files``: plan files that ``verify`` and ``show`` read
- ``batch``: ``stowplan batch``
- ``convert``: ``convert``, ``export`` and ``schema``
- ``fit_jax``: ``stowplan fit-jax``
- ``frontier``: ``stowplan frontier``
- ``inspect``: ``verify``, ``show`` and other commands that inspect existing files
- ``library``: ``stowplan library``
- ``llm``: ``stowplan llm``
- ``compare``: ``stowplan compare``
- ``serve``: ``stowplan serve``
- ``solve``: ``stowplan solve``
- ``tflm``: ``stowplan tflm``
- ``train``: ``stowplan train``
- ``tune_xla``: ``stowplan tune-xla``
- ``validate``: ``stowplan validate``
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from stowplan.deadline import is_still_reading, process_began

#: Signals that interrupt a command as Ctrl-C does. Some systems do not have all of them.
ENDING_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

#: Exit code after Ctrl-C. As for the other signals, it is 128 plus the number of the signal.
INTERRUPTED = 130

#: Exit code of an internal error. It differs from all others, so that a crash is never mistaken for a proof of infeasibility.
INTERNAL_ERROR = 70

#: Meaning of each exit code.
EXIT_CODES = {
    0: "success: 'solve' found a verified plan, or another command did its work",
    1: "it is proven that no plan exists",
    2: "an input or the command line is wrong; a line on standard error says where, what was found and what was expected",
    3: "no plan was found within the time limit, or the input was not read within it (reading always gets at least 0.5 s)",
    4: "verification failed: a plan or a proof is not valid, or a model with a plan computes other outputs than without it",
    INTERNAL_ERROR: "an error in stowplan itself; please report the lines on standard error",
    INTERRUPTED: "the command was interrupted by Ctrl-C; the best plan so far has been written",
    143: "the command was interrupted by SIGTERM, which timeout, Slurm and CI systems send; otherwise the same as 130",
    129: "the command was interrupted by SIGHUP, which is sent when a terminal closes; otherwise the same as 130",
}


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``stowplan``. It always raises SystemExit, with one of :data:`EXIT_CODES`.

    ``arguments`` are the words of the command line after ``stowplan``; None stands for the words of this process's own command
    line.
    """
    global _began
    _began = time.monotonic() if arguments is not None else process_began()
    with as_interrupts() as received:
        try:
            code = _run(arguments)
        except KeyboardInterrupt:
            code = INTERRUPTED
        interrupted = code == INTERRUPTED
        code = received.exit_code(code)
    if interrupted:
        from stowplan.cli.output import note

        note("stowplan: interrupted")
    if arguments is None and is_still_reading():
        # The thread that reads an input was abandoned at the time limit. It may be in code that would keep the interpreter from
        # ending.
        os._exit(code)
    sys.exit(code)


_began = 0.0


def began() -> float:
    """When the command began, on the monotonic clock. If :func:`main` was called without arguments, this is the start of the
    process."""
    return _began


def _run(arguments: list[str] | None) -> int:
    """Runs a command and returns its exit code."""
    # Imported here, so that Ctrl-C during the imports is handled by the caller.
    from stowplan.child_process import collect_garbage_seldom, light_imports

    collect_garbage_seldom()
    light_imports()
    from typer.exceptions import Abort, TyperException

    from stowplan.cli.app import app_for, completed
    from stowplan.cli.output import drop, note, prepare_streams
    from stowplan.errors import StowplanError

    prepare_streams()
    try:
        if os.environ.get("STOWPLAN_PARAMETERS"):
            from stowplan.parameters import all_parameters

            # An invalid file is refused here, before workers read it.
            all_parameters()
        words = completed(sys.argv[1:] if arguments is None else arguments)
        code = app_for(words)(words, prog_name="stowplan", standalone_mode=False)
    except StowplanError as error:
        note("\n    ".join((f"stowplan: {error}", *error.advice)))
        return error.exit_code
    except TyperException as error:
        # `stowplan` without arguments prints its help: the message of this error is the help text.
        context = getattr(error, "ctx", None)
        hint = f" (try '{context.command_path} --help')" if context is not None else ""
        message = _reworded(error, context)
        note(message if "\n" in message else f"stowplan: {message.rstrip('.')}{hint}")
        return 2
    except Abort as error:
        # Typer turns an unexpected end of a file into Abort, as it does with Ctrl-C. If no reader has reported it, it is an
        # internal error.
        if isinstance(error.__cause__ or error.__context__, EOFError):
            return _report_internal_error(error.__cause__ or error.__context__ or error)
        return INTERRUPTED
    except SystemExit:
        # The process that reads the help text has closed the pipe, as `head` does.
        drop(sys.stdout)
        return 0
    except Exception as error:
        return _report_internal_error(error)
    return code if isinstance(code, int) else 0


#: Messages of the parser about numbers, as patterns, and their replacements, which say what was expected.
_NUMBERS = {
    r": (.*) is not a valid int\w*( range)?": r": found \1, expected a whole number",
    r": (.*) is not a valid float( range)?": r": found \1, expected a number",
    r"(\S+) is not in the range x>=(\S+)\.": r"found \1, expected at least \2",
}


def _reworded(error: Any, context: Any) -> str:
    """Rewrites an error of the command-line parser: for a number, it says what was found and what was expected; for a removed
    flag, what replaces it."""
    import re

    from stowplan.cli.options import replacement_of

    flag = getattr(error, "option_name", "")
    replacement = replacement_of(flag, context.command.callback) if flag and context is not None else None
    if replacement is not None:
        return f"No such option: {flag}, expected {replacement}"
    message = str(error.format_message())
    for pattern, rewording in _NUMBERS.items():
        message = re.sub(pattern, rewording, message)
    return message


def _report_internal_error(error: BaseException) -> int:
    """Prints an internal error with its traceback, and returns :data:`INTERNAL_ERROR`."""
    import traceback

    from stowplan.cli.output import note

    note("".join(traceback.format_exception(error)).rstrip())
    note(f"stowplan: internal error: {type(error).__name__}: {error}; please report it with the lines above")
    return INTERNAL_ERROR


class Received:
    """The first of the :data:`ENDING_SIGNALS` signals that was received."""

    def __init__(self) -> None:
        self.number: int | None = None
        """Number of the signal; None if no such signal was received."""

    def exit_code(self, code: int) -> int:
        """The exit code of a command that would return ``code``. If one of the signals interrupted the command, it is 128 plus
        the number of the signal."""
        return code if self.number is None or code != INTERRUPTED else 128 + self.number


_received = Received()


@contextmanager
def as_interrupts() -> Iterator[Received]:
    """Context manager in which the first SIGTERM or SIGHUP raises KeyboardInterrupt, as Ctrl-C does. Later ones are ignored.

    Signals that the process ignores (``nohup``) stay ignored. Outside the main thread this does nothing, because only the main
    thread can handle signals.
    """
    global _received
    _received = received = Received()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if received.number is None:
            received.number = number
            raise KeyboardInterrupt

    with _signal_handlers(dict.fromkeys(ENDING_SIGNALS, interrupt)):
        yield received


@contextmanager
def event_on_interrupt() -> Iterator[threading.Event]:
    """Context manager in which Ctrl-C, SIGTERM and SIGHUP set an event instead of interrupting the command. A second Ctrl-C
    interrupts it as usual."""
    event, received, is_set = threading.Event(), _received, False

    def stop(number: int, frame: FrameType | None) -> None:
        # A second signal may arrive while the event is being set. It must not try to set it as well, because it would wait
        # forever for the event's lock.
        nonlocal is_set
        if not is_set:
            is_set = True
            event.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        elif received.number is None:
            received.number = number

    with _signal_handlers(dict.fromkeys((signal.SIGINT, *ENDING_SIGNALS), stop)):
        yield event


@contextmanager
def _signal_handlers(handlers: dict[signal.Signals, object]) -> Iterator[None]:
    """Context manager that installs these signal handlers, and restores the previous ones at the end."""
    before: dict[signal.Signals, object] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            # A handler that was not installed by Python code cannot be restored.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
