"""What the back end needs of its user's machine: jax and libtpu, which the package neither brings nor imports itself."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os

from stowplan.errors import MissingDependencyError, UsageError

#: Packages of the extra ``xla`` that compile; what a result is made by.
PACKAGES = ("jax", "jaxlib", "libtpu")

#: Machines that can be compiled for without being there: target, topology and accelerator type as libtpu names them.
CHIPS = {"tpu-v4": ("v4:2x2x1", "v4-8")}


#: Variables with flags of the compiler; a user's own stay in force, and belong to what a result is made by.
FLAGS = ("LIBTPU_INIT_ARGS", "XLA_FLAGS")


def versions() -> dict[str, str]:
    """Installed versions of :data:`PACKAGES`, and those of :data:`FLAGS` that are set.

    Raises
    ------
    MissingDependencyError
        Naming what is missing and the extra that brings it.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"compiling for XLA needs {' and '.join(missing)}, not installed here: pip install 'stowplan[xla]'"
        )
    installed = {name: importlib.metadata.version(name) for name in PACKAGES}
    return installed | {name: os.environ[name] for name in FLAGS if os.environ.get(name, "").strip()}


def chip_of(target: str) -> tuple[str, str]:
    """Topology and accelerator type of a target, by its name.

    Raises
    ------
    UsageError
        A target that XLA is not known to compile for ahead of time.
    """
    if target not in CHIPS:
        raise UsageError(f"found target {target!r}, expected one that XLA compiles for: {', '.join(CHIPS)}")
    return CHIPS[target]
