"""The command line: its entry point, the signals that end it, and its exit codes.

Machine output goes to standard output, progress and errors to standard error. What Ctrl-C does, SIGTERM and SIGHUP do, too:
``timeout``, Slurm and CI send SIGTERM, a terminal that closes sends SIGHUP, and both may come more than once. The library
installs no handlers itself, and leaves its user's as they are.

Each file knows only those before it:

- ``app``: all commands in one place
- ``options``: options of commands
- ``output``: what is said on the two standard streams
- ``outputs``: files that commands write
- ``batch``: ``stowplan batch``
- ``convert``: ``convert`` and ``export``
- ``fit_jax``: ``stowplan fit-jax``
- ``frontier``: ``stowplan frontier``
- ``inspect``: commands that look at what is there
- ``compare``: ``stowplan compare``
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

#: What ends a command besides Ctrl-C, where the system has it.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

#: Exit code after Ctrl-C; after another signal it is likewise 128 plus its number.
INTERRUPTED = 130

#: An error of our own making; apart from the others, so that no crash is taken for a proof of infeasibility.
INTERNAL_ERROR = 70

#: What each exit code says.
EXIT_CODES = {
    0: "solved: there is a verified plan; for other commands, all is well",
    1: "proven infeasible",
    2: "bad input or usage: one line on standard error says where, what was found and what was expected",
    3: "no plan within the limit, or the input not read within it (half a second at least)",
    4: "verification failed",
    INTERNAL_ERROR: "an error of stowplan's own: the lines on standard error belong in a report of it",
    INTERRUPTED: "interrupted by Ctrl-C: the best plan so far has been written",
    143: "the same by SIGTERM (timeout, Slurm, CI)",
    129: "the same by SIGHUP (a terminal that closes)",
}


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``stowplan``; always raises SystemExit."""
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
        # It may be in code that no interpreter that ends can stop.
        os._exit(code)
    sys.exit(code)


_began = 0.0


def began() -> float:
    """When the command began, by the monotonic clock: with its process, where it is the command line's own."""
    return _began


def _run(arguments: list[str] | None) -> int:
    # Imported here, so that Ctrl-C is met with an answer from the first moment on.
    from stowplan.child_process import collect_garbage_seldom, light_imports

    collect_garbage_seldom()
    light_imports()
    from typer.exceptions import Abort, TyperException

    from stowplan.cli.app import app_for
    from stowplan.cli.output import drop, note, prepare_streams
    from stowplan.errors import StowplanError

    prepare_streams()
    try:
        if os.environ.get("STOWPLAN_PARAMETERS"):
            from stowplan.parameters import all_parameters

            # A file that they do not take is refused here, before workers read it.
            all_parameters()
        code = app_for(sys.argv[1:] if arguments is None else arguments)(arguments, prog_name="stowplan", standalone_mode=False)
    except StowplanError as error:
        note("\n    ".join((f"stowplan: {error}", *error.advice)))
        return error.exit_code
    except TyperException as error:
        # A bare `stowplan` asks for help and gets it; its message is the help text.
        context = getattr(error, "ctx", None)
        hint = f" (try '{context.command_path} --help')" if context is not None else ""
        message = _in_plain_words(error, context)
        note(message if "\n" in message else f"stowplan: {message.rstrip('.')}{hint}")
        return 2
    except Abort as error:
        # What was cut off ends like Ctrl-C in typer's hands; it is an error of ours where no reader has said so.
        if isinstance(error.__cause__ or error.__context__, EOFError):
            return _internal(error.__cause__ or error.__context__ or error)
        return INTERRUPTED
    except SystemExit:
        # The reader of a help text has gone away, as `head` does.
        drop(sys.stdout)
        return 0
    except Exception as error:
        return _internal(error)
    return code if isinstance(code, int) else 0


#: How the parser says that a number is none, or too small, and the same with what was expected.
_NUMBERS = {
    r": (.*) is not a valid int\w*( range)?": r": found \1, expected a whole number",
    r": (.*) is not a valid float( range)?": r": found \1, expected a number",
    r"(\S+) is not in the range x>=(\S+)\.": r"found \1, expected at least \2",
}


def _in_plain_words(error: Any, context: Any) -> str:
    """What a parser of the command line says; of numbers what was found and expected, of old flags what is in their place."""
    import re

    from stowplan.cli.options import instead_of

    flag = getattr(error, "option_name", "")
    now = instead_of(flag, context.command.callback) if flag and context is not None else None
    if now is not None:
        return f"No such option: {flag}, expected {now}"
    message = str(error.format_message())
    for said, told in _NUMBERS.items():
        message = re.sub(said, told, message)
    return message


def _internal(error: BaseException) -> int:
    """Tell of an error of our own; returns its exit code."""
    import traceback

    from stowplan.cli.output import note

    note("".join(traceback.format_exception(error)).rstrip())
    note(f"stowplan: internal error: {type(error).__name__}: {error}; please report it with the lines above")
    return INTERNAL_ERROR


class Received:
    """The first of the :data:`ENDING` signals that has come."""

    def __init__(self) -> None:
        self.number: int | None = None

    def exit_code(self, code: int) -> int:
        """The code of a command that would return ``code``: one that was interrupted names the signal."""
        return code if self.number is None or code != INTERRUPTED else 128 + self.number


_received = Received()


@contextmanager
def as_interrupts() -> Iterator[Received]:
    """Within it, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; only the first of them.

    Those that are ignored (``nohup``) stay so. Off the main thread, which no signal reaches, nothing changes.
    """
    global _received
    _received = received = Received()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if received.number is None:
            received.number = number
            raise KeyboardInterrupt

    with _handled(dict.fromkeys(ENDING, interrupt)):
        yield received


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and SIGHUP set in place of interrupting; a second Ctrl-C interrupts as it always does."""
    event, received, is_set = threading.Event(), _received, False

    def stop(number: int, frame: FrameType | None) -> None:
        # A second signal may come while the first is setting the event, and would wait for its lock for ever.
        nonlocal is_set
        if not is_set:
            is_set = True
            event.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        elif received.number is None:
            received.number = number

    with _handled(dict.fromkeys((signal.SIGINT, *ENDING), stop)):
        yield event


@contextmanager
def _handled(handlers: dict[signal.Signals, object]) -> Iterator[None]:
    """Handlers within it, and those that were there before after it."""
    before: dict[signal.Signals, object] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            # One that no Python code has installed cannot be put back by any.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
