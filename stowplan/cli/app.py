"""The command-line application with all commands. Each command is in a module that is imported only when the command is
used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stowplan import __version__, kinds
from stowplan.frontends.options import OPTIONS
from stowplan.kernel.context import SEARCH_OPTIONS
from stowplan.options import ALL_INPUTS, GRAPHS, SEARCH


def _print_version(is_asked_for: bool) -> None:
    if is_asked_for:
        typer.echo(f"stowplan {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


class _Command(TyperCommand):
    """A command whose positional arguments appear in help and usage as, for example, ``INPUT``. Typer itself would write
    ``{INPUT}`` or ``INPUT <path>``."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for heading, rows in sections(self, ctx).items():
            with formatter.section(heading):
                formatter.write_dl([row for _, row in rows])


def sections(command: Any, context: Any) -> dict[str, list[tuple[str, tuple[str, str]]]]:
    """The rows of a command's help: for each heading, the name of each parameter, and its flags with their description.

    ``command`` and ``context`` are those of the command-line parser. Headings without rows are left out.
    """
    by_heading: dict[str, list[tuple[str, tuple[str, str]]]] = {name: [] for name in ("Arguments", *_HEADINGS, "Options")}
    parameters = command.get_params(context)
    # Advanced options are listed last.
    for parameter in sorted(parameters, key=lambda parameter: bool(parameter.name == "settings_given")):
        row = parameter.get_help_record(context)
        if row is None:
            continue
        if parameter.param_type_name == "argument":
            by_heading["Arguments"].append((parameter.name, (row[0].partition(" <")[0], row[1])))
        else:
            by_heading[_heading(parameter) if len(parameters) > _MAX_UNGROUPED else "Options"].append((parameter.name, row))
    return {heading: rows for heading, rows in by_heading.items() if rows}


#: Headings in the help of commands with many options, with the parameters under each of them. Options that declare a heading
#: are listed under that heading.
_HEADINGS: dict[str, tuple[str, ...]] = {
    "What is written": ("output", "emit", "certificate", "depfile", "report", "png", "plans", "as_json", "quiet"),
    SEARCH: ("time_limit", "seed", "cache"),
    "Existing plans": ("existing", "hint", "keep_close"),
    ALL_INPUTS: ("targets", "target"),
    GRAPHS: (),
}
#: The help of a command with at most so many parameters lists all options under one heading.
_MAX_UNGROUPED = 12


def _heading(parameter: Any) -> str:
    """The heading under which the help lists a parameter."""
    declared = OPTIONS.get(parameter.name) or SEARCH_OPTIONS.get(parameter.name)
    # A command may have a different option of the same name, such as the device of 'train'.
    if declared is not None and declared.metavar in (parameter.metavar, ""):
        return declared.heading
    return next((heading for heading, names in _HEADINGS.items() if parameter.name in names), "Options")


#: The module of each command.
_COMMANDS = {
    "solve": "solve",
    "frontier": "frontier",
    "verify": "inspect",
    "convert": "convert",
    "export": "convert",
    "schema": "convert",
    "batch": "batch",
    "compare": "compare",
    "validate": "validate",
    "serve": "serve",
    "tflm": "tflm",
    "tune-xla": "tune_xla",
    "fit-jax": "fit_jax",
    "show": "inspect",
    "targets": "inspect",
    "settings": "inspect",
    "show-versions": "inspect",
}

#: Description of each group of commands, and its commands.
_GROUPS = {
    "cache": (
        "Show or clear a plan cache, the folder of 'solve --cache'.",
        {"info": "inspect", "clear": "inspect"},
    ),
    "train": (
        "Train a policy, a neural network that makes plans.\n\n'stowplan solve' can use a policy as one of its methods, and "
        "'stowplan validate' measures how good its plans are. Each command below trains a policy for one kind of problem.",
        {agent: f"train.{agent}" for agent in ("muzero", "egrl", "ppo")},
    ),
    "llm": (
        "Place a language model on devices, for llama.cpp.\n\nllama.cpp runs language models on GPUs and on the CPU. "
        "'stowplan llm MODEL' is short for 'stowplan llm plan MODEL'.",
        {"plan": "llm", "calibrate": "llm"},
    ),
    "library": (
        "Show, check or extend the library of benchmark instances.\n\nAn instance is a problem with a name that never changes, "
        "on which planners can be compared. A table in the library states the best known objective of each instance, the best "
        "known bound, and who found them. The library is the folder 'instances' of the repository; it is not part of the "
        "installed package.",
        dict.fromkeys(("list", "show", "check", "add"), "library"),
    ),
}

#: For each group whose command may be left out on the command line: the command that is then meant.
_FIRST = {"llm": "plan"}


def completed(arguments: Sequence[str]) -> list[str]:
    """The arguments of the command line, with the command of a group added if it is left out. For example, ``llm MODEL``
    becomes ``llm plan MODEL``; ``llm`` alone and ``llm --help`` stay as they are."""
    group, *rest = arguments or [""]
    if group in _FIRST and rest and rest[0] not in (*_GROUPS[group][1], "-h", "--help"):
        return [group, _FIRST[group], *rest]
    return [*arguments]


def _load(module: str, *words: str) -> Any:
    """Imports the function of a command. For example, the function of ``cache info`` is ``cache_info_command`` in the module
    that :data:`_GROUPS` names."""
    return kinds.load(f"stowplan.cli.{module}:{'_'.join(words).replace('-', '_')}_command")


def commands() -> dict[str, Any]:
    """The functions of all commands by name. The command of a group is named ``GROUP COMMAND``."""
    inner = {f"{group} {name}": module for group, (_, modules) in _GROUPS.items() for name, module in modules.items()}
    return {name: _load(module, *name.split()) for name, module in (_COMMANDS | inner).items()}


#: The help of the whole application. The paragraph after ``\b`` is printed line by line as it is here.
_HELP = """Make memory plans for compiled machine-learning programs, and prove how good they are.

A plan says where the data of a program goes, for example at which offset each buffer starts, which tensors are in fast memory,
or what is recomputed to save memory.

Examples:

\b
  # Offsets of all tensors of a model in one range of memory, as a C header
  stowplan solve model.onnx --target arena --emit c-header -o model.h
  # Which tensors of a compiled program are in the fast memory of a TPU v4
  stowplan solve module.hlo.txt --target tpu-v4 --report plan.html
  # Offsets of the buffers in a list, and a check of these offsets
  stowplan solve buffers.csv -o plan.csv
  stowplan verify buffers.csv plan.csv
  # Plans for all networks in a folder, for the inference chip NNP-I
  stowplan batch models/ --target nnp-i -o results/

The target says what to plan for: a chip such as tpu-v4, or a question that needs no chip, such as arena. 'stowplan targets'
lists all targets. Without --target, 'stowplan solve FILE' uses the only target that fits the file; if several fit, it lists
them.

'stowplan COMMAND --help' explains a command. The pages that help texts name, such as docs/reference/packing.md, are in the
repository and at https://stowplan.github.io/stowplan/.
"""


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """The application with the command that the arguments name, and no other, because importing all commands takes time. If
    they name none, it has all commands."""
    command_name = next((argument for argument in arguments if not argument.startswith("-")), "")
    app = _new(help=_HELP, name="stowplan", add_completion=True)
    app.callback()(_options)
    is_known = command_name in _COMMANDS or command_name in _GROUPS
    for name, module in _COMMANDS.items():
        if name == command_name or not is_known:
            app.command(name, cls=_Command)(_load(module, name))
    for name, (purpose, modules) in _GROUPS.items():
        if name == command_name or not is_known:
            group = _new(help=purpose)
            group.callback()(lambda: None)
            for inner, module in modules.items():
                group.command(inner, cls=_Command)(_load(module, name, inner))
            app.add_typer(group, name=name)
    return app


def _new(*, add_completion: bool = False, **options: Any) -> typer.Typer:
    """A new application or group, with the settings that all of them share."""
    return typer.Typer(
        no_args_is_help=True,
        add_completion=add_completion,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )
