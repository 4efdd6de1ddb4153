"""Tuned parameters of the candidates, and a file that overrides them.

A candidate is one method that looks for plans or bounds. Its module declares its parameters in one struct, a subclass of
:class:`Parameters`, in which the docstring of each field says its unit and its use; the values are in the module's ``PARAMS``.
The environment variable ``STOWPLAN_PARAMETERS`` can name a TOML file that overrides some of them in all processes of a run. The
file names the parameters of ``stowplan.portfolio.KIND.MODULE`` under ``[KIND.MODULE]``::

    [rematerialization.offload]
    tries = 8

``python -m stowplan.parameters`` lists all parameters. Values that are compiled into machine code stay constants of their
modules.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.tables import text_table

P = TypeVar("P", bound="Parameters")

#: Environment variable with the path of the TOML file.
VARIABLE = "STOWPLAN_PARAMETERS"

#: Package that contains the modules of the candidates.
PACKAGE = "stowplan.portfolio"


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base class of the parameters of one module; the docstring of each field begins with its unit."""


_LOADED: dict[str, Parameters] = {}
"""Parameters of the modules that have been imported, by ``kind.module``."""


def parameters(kind: type[P], module: str) -> P:
    """The parameters of a module: the defaults of the struct, with the values of the TOML file.

    Parameters
    ----------
    kind
        The struct that declares them.
    module
        ``__name__`` of the module.

    Raises
    ------
    InputError
        The file cannot be read, or has a name or a value for this module that is not valid.
    """
    name = module.removeprefix(f"{PACKAGE}.")
    group, _, last = name.partition(".")
    changes = _overrides().get(group, {})
    try:
        loaded = msgspec.convert(changes.get(last, {}) if isinstance(changes, dict) else changes, kind)
    except msgspec.ValidationError as error:
        raise InputError(str(error), source=os.environ[VARIABLE], place=name) from error
    _LOADED[name] = loaded
    return loaded


@cache
def _overrides() -> dict[str, Any]:
    """The content of the TOML file; empty if the environment variable is not set."""
    path = os.environ.get(VARIABLE)
    if not path:
        return {}
    try:
        return msgspec.toml.decode(files.read_text(path), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(str(error), source=path) from error


def all_parameters() -> dict[str, Parameters]:
    """Parameters of all candidates, by ``kind.module``.

    Raises
    ------
    InputError
        The file cannot be read, has a name or a value that is not valid, or names a module that has no parameters.
    """
    # Only modules with parameters are imported: other modules may need packages that are not installed.
    for path in sorted(Path(import_module(PACKAGE).__path__[0]).glob("*/*.py")):
        if "PARAMS = parameters(" in path.read_text(encoding="utf-8"):
            import_module(f"{PACKAGE}.{path.parent.name}.{path.stem}")
    for group, modules in _overrides().items():
        for last in modules if isinstance(modules, dict) else ("",):
            if f"{group}.{last}" not in _LOADED:
                expected = f"one of {', '.join(sorted(_LOADED))}"
                raise InputError(f"found [{group}.{last}], expected {expected}", source=os.environ[VARIABLE])
    return dict(sorted(_LOADED.items()))


def rows(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """One row for each parameter: its full name, its value and its docstring.

    Parameters
    ----------
    names
        Beginnings of ``kind.module``; an empty sequence lists all modules.

    Raises
    ------
    InputError
        As for :func:`all_parameters`.
    """
    found = []
    for module, values in all_parameters().items():
        if not names or any(module.startswith(name) for name in names):
            docs = _docstrings(type(values))
            found += [(f"{module}.{field}", str(value), docs[field]) for field, value in msgspec.structs.asdict(values).items()]
    return found


def _docstrings(kind: type[Parameters]) -> dict[str, str]:
    """The docstrings of the fields of a struct, by field name. Python does not keep them, so they are read from the source."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, text in pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            docs[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return docs


def main(arguments: list[str]) -> int:
    """Prints the parameters of the modules whose ``kind.module`` begins with one of the arguments, or of all modules if there
    are no arguments. Returns the exit code: 0, or 2 after an error in the TOML file, which is printed."""
    try:
        print("\n".join(text_table(("parameter", "value:r", "what it is"), rows(arguments))))
    except InputError as error:
        print(f"stowplan: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    # The module is imported anew by its name, as candidates import it: ``__main__`` would have a registry of its own.
    raise SystemExit(import_module("stowplan.parameters").main(sys.argv[1:]))
