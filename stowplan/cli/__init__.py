"""The command line. Machine output goes to standard output, progress and errors to standard error.

Exit codes: 0 solved, 1 proven infeasible, 2 bad input or usage, 3 no plan within the limit, 4 verification failed,
130 interrupted.
"""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    """Entry point of ``stowplan``; always raises SystemExit."""
    from typer.exceptions import Abort, TyperException

    from stowplan.cli.app import app
    from stowplan.errors import StowplanError

    try:
        code = app(arguments, standalone_mode=False)
    except StowplanError as error:
        print(f"stowplan: {error}", file=sys.stderr)
        code = error.exit_code
    except TyperException as error:
        # A bare `stowplan` asks for help and gets it; its message is the help text.
        context = getattr(error, "ctx", None)
        hint = f" (try '{context.command_path} --help')" if context is not None else ""
        message = error.format_message()
        print(message if "\n" in message else f"stowplan: {message}{hint}", file=sys.stderr)
        code = 2
    except (Abort, KeyboardInterrupt):
        print("stowplan: interrupted", file=sys.stderr)
        code = 130
    except BrokenPipeError:
        # The reader of our output has gone away, as `head` does.
        sys.stderr.close()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
