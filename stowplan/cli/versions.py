"""``stowplan show-versions``."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Annotated

from stowplan.cli.options import option
from stowplan.cli.output import say, say_json
from stowplan.report.text import aligned
from stowplan.version import VERSION

#: What plans depend on, and what extras bring.
PACKAGES = (
    *("numpy", "scipy", "ortools", "highspy", "pulp", "numba", "joblib", "msgspec", "typer", "rich"),
    *("torch", "torch-geometric", "gymnasium", "sb3-contrib", "onnx", "executorch", "tflite-micro", "jax", "jaxlib", "libtpu"),
    *("scikit-learn", "distributed", "islpy", "matplotlib"),
)


def show_versions_command(as_json: Annotated[bool, option("--json", "", "Print it as JSON.")] = False) -> None:
    """Print versions and machine, for a report of a bug."""
    details = versions()
    say_json(details) if as_json else say("\n".join(aligned([(name, str(value)) for name, value in details.items()], ("", ""))))


def versions() -> dict[str, str | int]:
    """Versions and facts by name; those of packages are read from their metadata."""
    from stowplan.compiled.library import trouble

    has_affinity = hasattr(os, "sched_getaffinity")
    return {
        "stowplan": VERSION,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "processor cores": len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
        "heuristics": trouble() or "compiled",
        "executable": sys.executable,
        **{name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
