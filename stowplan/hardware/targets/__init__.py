"""Targets by name or from a file: :func:`load_target`, :func:`target_names`. The file format is in ``docs/targets.md``."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.hardware.targets.target import FORMAT, VERSION, CopyEngine, FastMemory, Roofline, Target
from stowplan.hardware.targets.units import decode_hook

__all__ = ["CopyEngine", "FastMemory", "Roofline", "Target", "decode_target", "load_target", "target_names"]

#: A target file is a page of text; anything longer is not one.
MAX_TARGET_BYTES = 1 << 20


def target_names() -> tuple[str, ...]:
    """Names of the targets that come with the package, sorted."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml")))


def load_target(name_or_path: str | Path) -> Target:
    """Target of this name, or from a TOML file of this path.

    A string is a path where it ends in ``.toml`` or has a path separator in it; otherwise it is a name.

    Raises
    ------
    InputError
        An unknown name (the message lists the known ones), a missing file, not TOML, a field that is missing, unknown or
        out of range; the message names file and field.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml") or "/" in name_or_path or "\\" in name_or_path:
        return decode_target(files.read_bytes(name_or_path, MAX_TARGET_BYTES), source=name_or_path)
    if name_or_path not in target_names():
        raise InputError(
            f"found target {name_or_path!r}, expected one of {', '.join(target_names())}, or the path of a .toml file"
        )
    file = f"{name_or_path}.toml"
    return decode_target((_folder() / file).read_bytes(), source=file)


def decode_target(data: bytes, source: str | Path | None = None) -> Target:
    """Target from the bytes of a TOML file; raises InputError as :func:`load_target` does."""
    try:
        head = msgspec.toml.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not a TOML file: {error}", source=source) from error
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        if head.get(key) != expected:
            raise InputError(f"found {head.get(key)!r}, expected {expected!r}", source=source, place=key)
    try:
        return msgspec.convert(head, Target, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise InputError(message, source=source, place=path.rstrip("`").removeprefix("$.") or None) from error
    except InputError as error:
        raise (error if source is None else error.within(source)) from None


def _folder() -> resources.abc.Traversable:
    return resources.files(__name__)
