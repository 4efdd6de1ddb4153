"""All commands in one place; each module of the room brings its own, and is imported when one of its commands is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stowplan import __version__, kinds
from stowplan.frontends.options import OPTIONS
from stowplan.options import ALL_INPUTS, SEARCH
from stowplan.portfolio.context import SEARCH_OPTIONS


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"stowplan {__version__}")
        raise typer.Exit


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
        for heading, rows in sections(self, ctx).items():
            with formatter.section(heading):
                formatter.write_dl([row for _, row in rows])


def sections(command: Any, context: Any) -> dict[str, list[tuple[str, tuple[str, str]]]]:
    """Parameters of a command as its help has them: name, and flags with text, under each heading."""
    found: dict[str, list[tuple[str, tuple[str, str]]]] = {name: [] for name in ("Arguments", *_HEADINGS, "Options")}
    parameters = command.get_params(context)
    # What is rare comes last.
    for each in sorted(parameters, key=lambda each: bool(each.name == "settings_given")):
        row = each.get_help_record(context)
        if row is None:
            continue
        if each.param_type_name == "argument":
            found["Arguments"].append((each.name, (row[0].partition(" <")[0], row[1])))
        else:
            found[_heading(each.name) if len(parameters) > _FEW else "Options"].append((each.name, row))
    return {heading: rows for heading, rows in found.items() if rows}


#: Headings in the help of commands with more options than a few, and the parameters under each beside those declared for it.
_HEADINGS: dict[str, tuple[str, ...]] = {
    "What is written": ("output", "emit", "certificate", "depfile", "report", "png", "plans", "as_json", "quiet"),
    SEARCH: ("time_limit", "seed", "cache"),
    "Plans at hand": ("at_hand", "hint", "hint_program", "keep_close"),
    ALL_INPUTS: ("targets", "target"),
}
_FEW = 12


def _heading(name: str) -> str:
    declared = OPTIONS.get(name) or SEARCH_OPTIONS.get(name)
    if declared is not None:
        return declared.heading
    return next((heading for heading, names in _HEADINGS.items() if name in names), "Options")


#: ``module:function`` of each command.
_COMMANDS = {
    "solve": "stowplan.cli.solve:solve_command",
    "frontier": "stowplan.cli.frontier:frontier_command",
    "verify": "stowplan.cli.inspect:verify_command",
    "convert": "stowplan.cli.convert:convert_command",
    "export": "stowplan.cli.convert:export_command",
    "batch": "stowplan.cli.batch:batch_command",
    "compare": "stowplan.cli.compare:compare_command",
    "validate": "stowplan.cli.validate:validate_command",
    "tflm": "stowplan.cli.tflm:tflm_command",
    "tune-xla": "stowplan.cli.tune_xla:tune_xla_command",
    "show": "stowplan.cli.inspect:show_command",
    "targets": "stowplan.cli.inspect:targets_command",
    "settings": "stowplan.cli.settings:settings_command",
    "show-versions": "stowplan.cli.versions:show_versions_command",
}

#: What each group of commands is for, and its commands.
_GROUPS = {
    "cache": (
        "Look at a plan cache, or clear it.",
        {"info": "stowplan.cli.inspect:cache_info_command", "clear": "stowplan.cli.inspect:cache_clear_command"},
    ),
    "train": (
        "Train a learned policy.",
        {agent: f"stowplan.cli.train.{agent}:{agent}_command" for agent in ("muzero", "egrl", "ppo")},
    ),
}


def commands() -> dict[str, Any]:
    """All commands by their names, those of groups after the groups'."""
    inner = {f"{group} {name}": place for group, (_, places) in _GROUPS.items() for name, place in places.items()}
    return {name: kinds.load(place) for name, place in (_COMMANDS | inner).items()}


#: Lines after ``\b`` stay as they are.
_HELP = """Verified, provably good memory plans for compiled machine-learning programs.

Lines to begin with:

\b
  stowplan solve model.onnx --target arena --emit c-header -o model.h
  stowplan solve module.hlo.txt --target tpu-v4 --report plan.html
  stowplan solve buffers.csv -o plan.csv
  stowplan verify buffers.csv plan.csv
  stowplan batch models/ --target nnp-i -o results/

'stowplan solve FILE' without a target says which targets fit the file; 'stowplan COMMAND --help' says the rest.
"""


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The application, with the command that is asked for alone, or with all where that is none: each takes time to import."""
    asked = next((each for each in arguments if not each.startswith("-")), "")
    app = _new(help=_HELP, name="stowplan", add_completion=True)
    app.callback()(_options)
    is_known = asked in _COMMANDS or asked in _GROUPS
    for name, place in _COMMANDS.items():
        if name == asked or not is_known:
            app.command(name, cls=_Command)(kinds.load(place))
    for name, (purpose, places) in _GROUPS.items():
        if name == asked or not is_known:
            group = _new(help=purpose)
            group.callback()(lambda: None)
            for each, place in places.items():
                group.command(each, cls=_Command)(kinds.load(place))
            app.add_typer(group, name=name)
    return app


def _new(*, add_completion: bool = False, **options: Any) -> typer.Typer:
    return typer.Typer(
        no_args_is_help=True,
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )
