"""What all target files share: a name or a path, TOML with a format and a version, errors that name file and field."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.hardware.targets.units import decode_hook

#: A target file is a page of text; anything longer is not one.
MAX_TARGET_BYTES = 1 << 20

#: Dotted keys with more parts than this are refused: no target has them, and reading them takes time with their square.
_DEEP_KEY = re.compile(rb"""(?<![\w.\-])(?:(?:[\w\-]{1,99}|"[^"\n]{0,99}"|'[^'\n]{0,99}')\s*\.\s*){32}""")

T = TypeVar("T")


def shipped_names(package: str) -> tuple[str, ...]:
    """Names of the target files that lie in a package, sorted."""
    entries = resources.files(package).iterdir()
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml")))


def is_path(name_or_path: str | Path) -> bool:
    """Whether this is a path: it ends in ``.toml`` or has a path separator in it; otherwise it is a name."""
    return isinstance(name_or_path, Path) or name_or_path.endswith(".toml") or "/" in name_or_path or "\\" in name_or_path


def read_target(name_or_path: str | Path, package: str) -> tuple[bytes, str | Path]:
    """Bytes of a target file, and what to call it in errors; raises InputError for an unknown name or a missing file."""
    if is_path(name_or_path):
        return files.read_bytes(name_or_path, MAX_TARGET_BYTES), name_or_path
    names = shipped_names(package)
    if name_or_path not in names:
        raise InputError(f"found target {name_or_path!r}, expected one of {', '.join(names)}, or the path of a .toml file")
    file = f"{name_or_path}.toml"
    return (resources.files(package) / file).read_bytes(), file


def decode_toml(data: bytes) -> dict[str, Any]:
    """Tables of a TOML file; raises InputError where it is none."""
    if _DEEP_KEY.search(data):
        raise InputError("found a key of more than 32 parts, expected a few")
    try:
        found: dict[str, Any] = msgspec.toml.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        # ValueError: bytes that are not UTF-8, and numbers of thousands of digits.
        raise InputError(f"not a TOML file: {error}") from error
    except RecursionError as error:
        raise InputError("not a TOML file: lists or tables are nested too deep") from error
    return found


#: Where the templates lie, one for each kind of problem that has targets, in a folder of this package.
_TEMPLATES = resources.files(__name__.rpartition(".")[0]) / "templates"


def template_kinds() -> tuple[str, ...]:
    """Kinds of problems that there is a template of a target file for, sorted."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _TEMPLATES.iterdir() if entry.name.endswith(".toml")))


def template(kind: str) -> str:
    """A target file with every field and a comment on each, to start one's own from; raises InputError for an unknown kind."""
    name = kind.replace("_", "-")
    if name not in template_kinds():
        raise InputError(f"found kind {kind!r}, expected one of {', '.join(template_kinds())}")
    return (_TEMPLATES / f"{name}.toml").read_text(encoding="utf-8")


def decode_file(data: bytes, kind: type[T], format_name: str, version: int, source: str | Path | None) -> T:
    """Target of a kind from TOML; raises InputError naming source and field."""
    try:
        head = decode_toml(data)
        for key, expected in (("format", format_name), ("version", version)):
            if head.get(key) != expected:
                raise InputError(f"found {head.get(key)!r}, expected {expected!r}", place=key)
        return msgspec.convert(head, kind, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise InputError(message, source=source, place=path.rstrip("`").removeprefix("$.") or None) from error
    except InputError as error:
        raise (error if source is None else error.within(source)) from None
