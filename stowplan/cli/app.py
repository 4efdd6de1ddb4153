"""All commands in one place; each module of the room brings its own."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stowplan import __version__
from stowplan.cli import batch, cache, compare, export, inspect, solve, tune_xla, validate
from stowplan.cli.train import COMMANDS as AGENTS

_CONTEXT = {"help_option_names": ["-h", "--help"]}
_GROUP: Any = {"no_args_is_help": True, "rich_markup_mode": None, "context_settings": _CONTEXT}

app = typer.Typer(
    name="stowplan",
    help="Verified, provably good memory plans for compiled machine-learning programs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=_CONTEXT,
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


class _Command(TyperCommand):
    """A command whose help names its arguments plainly: ``INPUT``, where typer writes ``{INPUT}`` and ``INPUT <path>``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                name = record[0].partition(" <")[0] if is_argument else record[0]
                sections[parameter.param_type_name].append((name, record[1]))
        for title, rows in sections.items():
            if rows:
                with formatter.section(f"{title.capitalize()}s"):
                    formatter.write_dl(rows)


for _name, _function in (
    ("solve", solve.solve_command),
    ("verify", inspect.verify_command),
    ("convert", inspect.convert_command),
    ("export", export.export_command),
    ("batch", batch.batch_command),
    ("compare", compare.compare_command),
    ("validate", validate.validate_command),
    ("tune-xla", tune_xla.tune_xla_command),
    ("show", inspect.show_command),
    ("targets", inspect.targets_command),
):
    app.command(_name, cls=_Command)(_function)

_cache = typer.Typer(help="Look at a plan cache, or clear it.", **_GROUP)
_cache.callback()(lambda: None)
_cache.command("info", cls=_Command)(cache.info_command)
_cache.command("clear", cls=_Command)(cache.clear_command)
app.add_typer(_cache, name="cache")

_train = typer.Typer(help="Train a learned policy.", **_GROUP)
_train.callback()(lambda: None)
for _agent, _command in AGENTS.items():
    _train.command(_agent, cls=_Command)(_command)
app.add_typer(_train, name="train")
