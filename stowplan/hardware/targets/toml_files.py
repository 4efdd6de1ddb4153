"""What all target files share: a name or a path, TOML with a format and a version, errors that name file and field."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.hardware.targets.units import decode_hook

#: A target file is a page of text; anything longer is not one.
MAX_TARGET_BYTES = 1 << 20

#: Dotted keys with more parts than this are refused: no target has them, and reading them takes time with their square.
_DEEP_KEY = re.compile(rb"""(?<![\w.\-])(?:(?:[\w\-]{1,99}|"[^"\n]{0,99}"|'[^'\n]{0,99}')\s*\.\s*){32}""")

T = TypeVar("T")


def is_path(name_or_path: str | Path) -> bool:
    """Whether this is a path: it ends in ``.toml`` or has a path separator in it; otherwise it is a name."""
    return isinstance(name_or_path, Path) or name_or_path.endswith(".toml") or "/" in name_or_path or "\\" in name_or_path


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


@dataclass(frozen=True)
class TargetFiles(Generic[T]):
    """Target files of one class: those that come with a package, and others by their paths."""

    target: type[T]
    package: str
    """Package in which the files lie that are known by name."""
    format_name: str
    version: int
    noun: str = "target"

    def names(self) -> tuple[str, ...]:
        """Names of the targets that come with the package, sorted."""
        entries = resources.files(self.package).iterdir()
        return tuple(sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml")))

    def load(self, name_or_path: str | Path) -> T:
        """Target of this name, or from a TOML file of this path (:func:`is_path`).

        Raises
        ------
        InputError
            An unknown name, a missing file, not TOML, a field that is missing, unknown or out of range.
        """
        if is_path(name_or_path):
            return self.decode(files.read_bytes(name_or_path, MAX_TARGET_BYTES), name_or_path)
        names = self.names()
        if name_or_path not in names:
            raise InputError(
                f"found {self.noun} {name_or_path!r}, expected one of {', '.join(names)}, or the path of a .toml file"
            )
        file = f"{name_or_path}.toml"
        return self.decode((resources.files(self.package) / file).read_bytes(), file)

    def decode(self, data: bytes, source: str | Path | None = None) -> T:
        """Target from the bytes of a TOML file; raises InputError naming source and field, as :meth:`load` does."""
        try:
            head = decode_toml(data)
            for key, expected in (("format", self.format_name), ("version", self.version)):
                if head.get(key) != expected:
                    raise InputError(f"found {head.get(key)!r}, expected {expected!r}", place=key)
            return msgspec.convert(head, self.target, dec_hook=decode_hook)
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `")
            raise InputError(message, source=source, place=path.rstrip("`").removeprefix("$.") or None) from error
        except InputError as error:
            raise (error if source is None else error.within(source)) from None
