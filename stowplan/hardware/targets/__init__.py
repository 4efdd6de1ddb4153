"""Targets by name or from a file: :func:`load_target`, :func:`target_names`. The file format is in ``docs/targets.md``."""

from __future__ import annotations

from pathlib import Path

from stowplan.hardware.targets.target import FORMAT, VERSION, CopyEngine, FastMemory, Roofline, Target
from stowplan.hardware.targets.toml_files import decode_file, read_target, shipped_names

__all__ = ["CopyEngine", "FastMemory", "Roofline", "Target", "decode_target", "load_target", "target_names"]


def target_names() -> tuple[str, ...]:
    """Names of the targets that come with the package, sorted."""
    return shipped_names(__name__)


def load_target(name_or_path: str | Path) -> Target:
    """Target of this name, or from a TOML file of this path.

    A string is a path where it ends in ``.toml`` or has a path separator in it; otherwise it is a name.

    Raises
    ------
    InputError
        An unknown name (the message lists the known ones), a missing file, not TOML, a field that is missing, unknown or
        out of range; the message names file and field.
    """
    return decode_target(*read_target(name_or_path, __name__))


def decode_target(data: bytes, source: str | Path | None = None) -> Target:
    """Target from the bytes of a TOML file; raises InputError as :func:`load_target` does."""
    return decode_file(data, Target, FORMAT, VERSION, source)
