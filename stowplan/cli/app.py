"""All commands in one place; each module of the room brings its own."""

from __future__ import annotations

from typing import Annotated

import typer

from stowplan import __version__
from stowplan.cli import inspect, solve

app = typer.Typer(
    name="stowplan",
    help="Verified, provably good memory plans for compiled machine-learning programs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"stowplan {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("solve")(solve.solve_command)
app.command("verify")(inspect.verify_command)
app.command("convert")(inspect.convert_command)
app.command("show")(inspect.show_command)
app.command("targets")(inspect.targets_command)
