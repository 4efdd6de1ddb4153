"""Options that several commands share, the option ``--set``, and the replacements of removed flags.

Options that say how inputs are read are declared in :mod:`stowplan.frontends.options`, and options of the search in
:mod:`stowplan.kernel.context`. A command declares an option of its own by annotating a parameter: with :func:`option` if the
option has a flag, and with :class:`~stowplan.options.Option` if it is a setting, which ``--set`` sets.
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan import arguments
from stowplan.errors import UsageError
from stowplan.frontends.options import OPTIONS, ReadOptions, spelt_all
from stowplan.kernel.context import SEARCH_OPTIONS, Options
from stowplan.options import Option, declared

if TYPE_CHECKING:
    from stowplan.portfolio.batch.records import Settings


def option(flags: str, metavar: str, text: str, **others: Any) -> Any:
    """An option with flags, which are separated by blanks; a placeholder for its value, which is empty for a switch; and its
    help text."""
    return typer.Option(*flags.split(), metavar=metavar or None, help=text, **others)


#: Declares an option of a single command that has no flag and is set by ``--set``.
setting = functools.partial(Option, "")


def size(text: str) -> int:
    """Converts the text of an option to bytes (:func:`stowplan.arguments.size`). Raises typer.BadParameter if it is no size."""
    try:
        return arguments.size("{}", text)
    except UsageError as error:
        raise typer.BadParameter(str(error)) from error


Input = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT",
        help="Model, program or problem: an ONNX or TensorFlow Lite model, a program of torch.export (.pt2), XLA's HLO as "
        "text, a memory snapshot of PyTorch, or a problem file that 'stowplan convert' wrote. Pages below "
        "docs/reference describe other formats: a list of buffers in CSV (packing.md), a graph of operators in JSON "
        "(operator-order.md), the layers of a network in JSON (networks.md), and the data-flow graph of a loop in JSON "
        "or DOT (loop-bodies.md). Every file may be compressed with gzip.",
    ),
]
Suites = Annotated[
    list[Path],
    typer.Argument(
        metavar="SUITE...",
        help="Files in the formats that 'stowplan solve' reads; or folders, or glob patterns in quotes. A folder stands for "
        "all inputs in it and in the folders below it. Inputs are recognized by the endings of their names and, if "
        "they are JSON, by their content.",
    ),
]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="Plan file that 'stowplan solve -o' wrote.")]
Targets = Annotated[
    list[str] | None,
    option(
        "--target",
        "NAME",
        "What to plan for: a name that 'stowplan targets' lists, or the path of a target file (TOML). If there are inputs "
        "of several kinds, such as HLO and networks, give the option once for each kind: --target tpu-v4 --target nnp-i. "
        "Without the option, only inputs that need no target can be read.",
    ),
]
Seed = Annotated[int, option("--seed", "N", SEARCH_OPTIONS["seed"].help)]
Quiet = Annotated[bool, option("-q --quiet", "", "Do not print progress on standard error.")]
Report = Annotated[Path | None, option("--report", "FILE", "Write a report with tables and pictures to this file, as HTML.")]
Picture = Annotated[
    Path | None,
    option(
        "--png",
        "FILE",
        "Draw the plan to this file. The ending of its name chooses the format: .svg, .png or .pdf. The last two need "
        "matplotlib, which the Python extra 'viz' installs.",
    ),
]


def _cache_folder(text: str) -> Any:
    """The option that names the folder of a plan cache, with its help text."""
    # If the cache cannot be read, 'solve' warns and still solves the problem.
    return typer.Option("--cache", metavar="DIR", envvar="STOWPLAN_CACHE", readable=False, help=text)


CacheFolder = Annotated[
    Path | None,
    _cache_folder(
        "Keep results in this folder, which is called a plan cache. A later call with the same problem, options and "
        "software versions then reuses the stored result. By default, no results are kept."
    ),
]
ExistingCache = Annotated[
    Path | None,
    _cache_folder(
        "Folder of the plan cache: the one that was given to 'stowplan solve --cache'. The option is required unless the "
        "environment variable names the folder."
    ),
]

# Options of commands that compile JAX programs ahead of time.
Shapes = Annotated[
    list[str] | None,
    option(
        "--shapes",
        "SHAPE",
        "Types and shapes of all arguments of the function: 'f32[32,128] s32[]' is a matrix of 32-bit floating-point "
        "numbers and a scalar 32-bit integer. You may also give the option once for each argument. It is needed unless "
        "--arguments is given, or MODULE:FUNCTION is a call, which returns the arguments.",
    ),
]
Arguments = Annotated[
    str,
    option(
        "--arguments",
        "MODULE:NAME",
        "Arguments of the function, instead of --shapes. NAME is a tuple of arrays or of shapes (jax.ShapeDtypeStruct) in "
        "the module, or a function that returns such a tuple.",
    ),
]
Donated = Annotated[
    list[int] | None,
    option(
        "--donate",
        "N",
        "Position, counted from 0, of a donated argument, that is, one whose memory the function may overwrite with its "
        "results. May be given several times.",
    ),
]
OpenTimeLimit = Annotated[
    float | None,
    option(
        "--time-limit",
        "SECONDS",
        "Time limit of the search, after which the best result so far is returned. By default, there is no limit.",
    ),
]
CompileLimit = Annotated[float, option("--compile-limit", "SECONDS", "Time limit of a single compilation.")]
CompileFolder = Annotated[
    Path | None,
    option(
        "--folder",
        "FOLDER",
        "Keep the results of compilations in this folder, so that a later run with the same folder does not repeat them. "
        "By default, they are not kept.",
    ),
]

#: Help texts that replace the general ones: of ``--target``, for commands that read the target from a plan; and of
#: ``--capacity``, for commands whose problems all have a fast memory.
TARGET_OF_PLAN = {
    "target": "What the plan was made for: a name that 'stowplan targets' lists, or the path of a target file (TOML). The "
    "default is the target that the plan names. If the plan was made for a target file of your own, the option is "
    "required."
}
FAST_MEMORY = {
    "capacity": "Size of the fastest memory in bytes, or with a unit: KB, MB and GB are powers of 1000, and KiB, MiB "
    "and GiB are powers of 1024. The default is the size that the target or the problem file states."
}


def chip_target(inputs: str, argument: str = "INPUT") -> dict[str, str]:
    """The description of ``--target`` for a command whose inputs are problem files, or programs or models of a single sort.

    ``inputs`` names this sort in the plural, and ``argument`` is the placeholder of the input in the command's usage.
    """
    return {
        "target": f"Chip to plan for: a name that 'stowplan targets' lists for {inputs}, or the path of a target file. "
        f"The option is required unless {argument} is a problem file."
    }


#: Names of the options of inputs that may have a common value for all inputs of a suite.
SHARED = tuple(name for name, option in OPTIONS.items() if option.is_shared)

#: What replaces a removed flag, by flag. Flags that have become a setting of the same name are left out.
REPLACED_FLAGS = {
    "--certify": "--set certify=yes",
    "--config": "--emit config=FILE",
    "--prod": "--baseline prod",
    "--rule": "--set NAME=VALUE",
    "--xla-plan": "--plan xla=FILE",
    "--xla-plans": "--plan xla=FOLDER",
}


def with_options(
    inputs: Collection[str] = tuple(OPTIONS), search: Collection[str] = (), texts: Mapping[str, str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator that gives a command options of inputs and options of the search. If some of them have no flag, it also gets
    ``--set``.

    The command is called with the values of the options of inputs in the keyword argument ``options``, and with the values of
    the options of the search in the keyword argument ``search``. If it has a parameter ``settings``, it also gets those texts
    of ``--set`` that name no option; otherwise, such texts are errors. The decorated command raises UsageError for a text of
    ``--set`` that is not valid, and for a value that :class:`~stowplan.frontends.options.ReadOptions` or
    :class:`~stowplan.kernel.context.Options` refuses.

    Parameters
    ----------
    inputs
        Names of options of inputs; all of them by default.
    search
        Names of options of the search; none by default.
    texts
        Help texts, by name of the option, that replace the general ones in this command.
    """
    return functools.partial(_with_options, inputs=inputs, search=search, texts=texts or {})


def _with_options(
    command: Callable[..., None], inputs: Collection[str], search: Collection[str], texts: Mapping[str, str]
) -> Callable[..., None]:
    """Implements :func:`with_options`."""
    signature = inspect.signature(command, eval_str=True).parameters
    own = [parameter for name, parameter in signature.items() if name not in ("options", "search")]
    own_options = declared((parameter.name, parameter.annotation, parameter.default) for parameter in own)
    shared = [option for name, option in OPTIONS.items() if name in inputs]
    shared += [option for name, option in SEARCH_OPTIONS.items() if name in search]
    settings = own_options | {option.name: option for option in shared if not option.flag}
    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own if parameter.name not in own_options
    ]
    parameters += [_parameter(option, texts.get(option.name, option.help)) for option in shared if option.flag]
    takes_others = "settings" in signature
    if settings and not takes_others:
        parameters.append(_set_parameter(settings))

    @functools.wraps(command)
    def run(settings_given: list[str] | None = None, **values: Any) -> None:
        given = values["settings"] if takes_others else settings_given
        setting_values, other_texts = read_settings(given or (), settings)
        if takes_others:
            values["settings"] = other_texts or None
        elif other_texts:
            raise unknown_setting(other_texts[0], settings)
        values |= setting_values
        values["options"] = ReadOptions(**{name: values.pop(name) for name in inputs if name in values})
        if search:
            values["search"] = Options(**{name: values.pop(name) for name in search if name in values})
        command(**values)

    run.settings = settings  # type: ignore[attr-defined]
    return with_parameters(run, parameters)


def with_parameters(command: Callable[..., None], parameters: Collection[inspect.Parameter]) -> Callable[..., None]:
    """Replaces the signature of a command, from which typer makes its arguments and options; returns the same command."""
    command.__signature__ = inspect.Signature(list(parameters))  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__dict__.pop("__wrapped__", None)
    return command


def _parameter(declared: Option, text: str) -> inspect.Parameter:
    """The parameter of a command for an option that has a flag. ``text`` is its help."""
    default = ",".join(declared.default) if declared.has_commas else None if declared.is_several else declared.default
    kind: Any = str if declared.has_commas else next((scalar for scalar in (bool, int, float) if scalar in declared.types), str)
    flag_option = option(declared.flag, declared.metavar, text, parser=size if declared.metavar == "SIZE" else None)
    kind = list[str] if declared.is_several else kind
    wanted: Any = kind if default is not None else kind | None
    annotation = Annotated[wanted, flag_option]
    return inspect.Parameter(declared.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _set_parameter(settings: Mapping[str, Option]) -> inspect.Parameter:
    """The parameter for ``--set``, with completion of the names of settings."""

    def complete(incomplete: str) -> list[str]:
        return [f"{name}=" for name in names_of(settings) if name.startswith(incomplete)]

    flag_option = option(
        "--set",
        "NAME=VALUE",
        "Set an advanced option. 'stowplan settings' lists the names and their values. May be given several times.",
        autocompletion=complete,
    )
    annotation = Annotated[list[str] | None, flag_option]
    return inspect.Parameter("settings_given", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def names_of(settings: Mapping[str, Option]) -> list[str]:
    """All names that ``--set`` accepts for these settings."""
    return [name for key in settings for name in (_rules() if key == "rules" else [key])]


def _rules() -> Collection[str]:
    """The names of the rules of loop bodies. Each of them is a setting of its own."""
    # Imported here because the reader of loop bodies takes time to import.
    from stowplan.frontends.dfg import RULES

    return RULES


def read_settings(texts: Sequence[str], settings: Mapping[str, Option]) -> tuple[dict[str, Any], list[str]]:
    """Parses the texts of ``--set``. Returns the values of settings by name, and the texts whose names are no settings.

    Raises
    ------
    UsageError
        A text is not of the form ``NAME=VALUE``, or its value is not valid.
    """
    texts_by_name: dict[str, list[str]] = {}
    other_texts = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--set: found {text!r}, expected NAME=VALUE")
        if name in settings:
            texts_by_name.setdefault(name, []).append(value)
        elif "rules" in settings and name in _rules():
            texts_by_name.setdefault("rules", []).append(text)
        else:
            other_texts.append(text)
    return {name: settings[name].value(values) for name, values in texts_by_name.items()}, other_texts


def unknown_setting(text: str, settings: Mapping[str, Option]) -> UsageError:
    """The error, for the caller to raise, that a text of ``--set`` has a name that is no setting. Its message lists all names,
    and suggests a similar one."""
    name, names = text.partition("=")[0], names_of(settings)
    meant = "".join(f"; perhaps {close}" for close in difflib.get_close_matches(name, names, 1))
    return UsageError(f"--set: found {name!r}, expected one of {', '.join(names)}{meant}")


def replacement_of(flag: str, command: Any) -> str | None:
    """What replaces a removed flag of a command; None if the command never had this flag."""
    settings: Mapping[str, Option] = getattr(command, "settings", {})
    setting = settings.get(flag.removeprefix("--").replace("-", "_"))
    return REPLACED_FLAGS.get(flag) if setting is None else f"--set {setting.usage}"


def settings_of(options: ReadOptions, targets: Sequence[str] = (), **others: Any) -> Settings:
    """The settings of a suite: the options that all its inputs share, its targets, and ``others``.

    Raises
    ------
    UsageError
        One of the options is given that the inputs of a suite cannot share, because its value depends on the input.
    """
    from stowplan.portfolio.batch.records import Settings

    given: dict[str, Any] = {name: str(value) if isinstance(value, Path) else value for name, value in options.given().items()}
    # A single target is stored as text, as in records of earlier versions.
    target = given.pop("target", None) or (targets[0] if len(targets) == 1 else tuple(targets) or None)
    unshared = [name for name in given if name not in SHARED]
    if unshared:
        raise UsageError(f"{spelt_all(unshared)}: each input needs files of its own for this, so that a suite cannot share it")
    return Settings(target=target, **given, **others)
