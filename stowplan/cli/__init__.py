"""The command line. Machine output goes to standard output, progress and errors to standard error."""

from __future__ import annotations

import sys

from stowplan.cli.signals import INTERRUPTED, as_interrupts

#: An error of our own making; apart from the others, so that no crash is taken for a proof of infeasibility.
INTERNAL_ERROR = 70

#: What each exit code says.
EXIT_CODES = {
    0: "solved: there is a verified plan; for other commands, all is well",
    1: "proven infeasible",
    2: "bad input or usage: one line on standard error says where, what was found and what was expected",
    3: "no plan within the limit, or the input not read within it (ten seconds at least)",
    4: "verification failed",
    INTERNAL_ERROR: "an error of stowplan's own: the lines on standard error belong in a report of it",
    INTERRUPTED: "interrupted by Ctrl-C: the best plan so far has been written",
    143: "the same by SIGTERM (timeout, Slurm, CI)",
    129: "the same by SIGHUP (a terminal that closes)",
}


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``stowplan``; always raises SystemExit."""
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
    sys.exit(code)


def _run(arguments: list[str] | None) -> int:
    # Imported here, so that Ctrl-C is met with an answer from the first moment on.
    from stowplan.child_process import collect_seldom
    from stowplan.models.light_imports import light_imports

    collect_seldom()
    light_imports()
    from typer.exceptions import Abort, TyperException

    from stowplan.cli.app import app_for
    from stowplan.cli.output import drop, note, prepare_streams
    from stowplan.errors import StowplanError

    prepare_streams()
    try:
        code = app_for(sys.argv[1:] if arguments is None else arguments)(arguments, prog_name="stowplan", standalone_mode=False)
    except StowplanError as error:
        note("\n    ".join((f"stowplan: {error}", *error.advice)))
        return error.exit_code
    except TyperException as error:
        # A bare `stowplan` asks for help and gets it; its message is the help text.
        context = getattr(error, "ctx", None)
        hint = f" (try '{context.command_path} --help')" if context is not None else ""
        message = error.format_message()
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


def _internal(error: BaseException) -> int:
    """Tell of an error of our own; returns its exit code."""
    import traceback

    from stowplan.cli.output import note

    note("".join(traceback.format_exception(error)).rstrip())
    note(f"stowplan: internal error: {type(error).__name__}: {error}; please report it with the lines above")
    return INTERNAL_ERROR
