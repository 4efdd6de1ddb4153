"""Parameters of candidates: numbers that were tuned, each with what it counts and what it is for, and a file that changes them.

A module of a candidate has one struct of them, :class:`Parameters`, and its values as ``PARAMS``. A TOML file that the variable
``STOWPLAN_PARAMETERS`` names changes some of them for all processes of a run, by the kind and the module::

    [rematerialization.offload]
    tries = 8

``python -m stowplan.parameters`` lists all of them. What compiled code is built with stays a constant of its module.
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

#: Names the TOML file.
VARIABLE = "STOWPLAN_PARAMETERS"

#: Where modules of candidates are.
PACKAGE = "stowplan.portfolio"


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of one module; the docstring of each begins with its unit."""


_LOADED: dict[str, Parameters] = {}
"""Parameters of modules that have been imported, by kind and module."""


def parameters(kind: type[P], module: str) -> P:
    """The parameters of a module: their defaults, and what the file changes.

    Parameters
    ----------
    module
        ``__name__`` of the module.

    Raises
    ------
    InputError
        The file cannot be read, or has a name or a value that these parameters do not take.
    """
    name = module.removeprefix(f"{PACKAGE}.")
    group, _, last = name.partition(".")
    changes = _changes().get(group, {})
    try:
        loaded = msgspec.convert(changes.get(last, {}) if isinstance(changes, dict) else changes, kind)
    except msgspec.ValidationError as error:
        raise InputError(str(error), source=os.environ[VARIABLE], place=name) from error
    _LOADED[name] = loaded
    return loaded


@cache
def _changes() -> dict[str, Any]:
    path = os.environ.get(VARIABLE)
    if not path:
        return {}
    try:
        return msgspec.toml.decode(files.read_text(path), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise InputError(str(error), source=path) from error


def every() -> dict[str, Parameters]:
    """Parameters of all candidates, by kind and module.

    Raises
    ------
    InputError
        The file names a module that has none.
    """
    # Only modules that have some are imported: others may need what is not installed.
    for path in sorted(Path(import_module(PACKAGE).__path__[0]).glob("*/*.py")):
        if "PARAMS = parameters(" in path.read_text(encoding="utf-8"):
            import_module(f"{PACKAGE}.{path.parent.name}.{path.stem}")
    for group, modules in _changes().items():
        for last in modules if isinstance(modules, dict) else ("",):
            if f"{group}.{last}" not in _LOADED:
                expected = f"one of {', '.join(sorted(_LOADED))}"
                raise InputError(f"found [{group}.{last}], expected {expected}", source=os.environ[VARIABLE])
    return dict(sorted(_LOADED.items()))


def rows(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Module and name, value and docstring of each; of all modules, or of those whose names begin with one of these."""
    found = []
    for module, values in every().items():
        if not names or any(module.startswith(name) for name in names):
            docs = _docstrings(type(values))
            found += [(f"{module}.{field}", str(value), docs[field]) for field, value in msgspec.structs.asdict(values).items()]
    return found


def _docstrings(kind: type[Parameters]) -> dict[str, str]:
    """Of fields, by their names."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    docs = {}
    for field, text in pairwise(tree.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            docs[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return docs


def main(arguments: list[str]) -> int:
    """Print them, of modules whose names begin with one of the arguments."""
    try:
        print("\n".join(text_table(("parameter", "value:r", "what it is"), rows(arguments))))
    except InputError as error:
        print(f"stowplan: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    # As it is imported by modules of candidates.
    raise SystemExit(import_module("stowplan.parameters").main(sys.argv[1:]))
