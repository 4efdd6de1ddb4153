"""What the back end needs of its user's machine: executorch, which the package neither brings nor imports at its own import."""

from __future__ import annotations

import importlib.metadata
import importlib.util

from stowplan.errors import MissingDependencyError

#: Version of executorch whose memory planning this back end was written and tested for: its first two numbers.
VERSION = "1.5"


def require() -> None:
    """Raise MissingDependencyError, naming the extra that brings it, where executorch is not installed."""
    if importlib.util.find_spec("executorch") is None:
        raise MissingDependencyError(
            "planning for ExecuTorch needs executorch, not installed here: pip install 'stowplan[executorch]'"
        )


def complaint() -> str:
    """What is wrong with the installed version of executorch, in one line; empty where it is the one that is known."""
    try:
        found = importlib.metadata.version("executorch")
    except importlib.metadata.PackageNotFoundError:
        return f"found an executorch without a version, expected {VERSION}"
    return "" if found.split(".")[:2] == VERSION.split(".") else f"found executorch {found}, expected {VERSION}"
