"""What all target files share: a name or a path, TOML with format and version, quantities with units, errors that name a field.

A file says ``"64 MiB"`` or ``"1200 GB/s"``, so that nobody has to guess a unit. The program counts in whole bytes, bytes a
second, hertz, operations a second and picoseconds, so that costs are exact integers. ``k, M, G, T, P`` are powers of 1000,
``Ki, Mi, Gi`` powers of 1024.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import msgspec

from stowplan import files
from stowplan.errors import InputError, naming

PS_PER_SECOND = 10**12

_QUANTITY = re.compile(r"([+-]?[0-9]{1,15}(?:\.[0-9]{1,12})?)\s*(\S+)")
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


class Quantity(int):
    """A positive (or, where ``least`` is 0, non-negative) whole number of base units."""

    example: ClassVar[str]
    units: ClassVar[dict[str, int]]
    least: ClassVar[int]

    def __init_subclass__(cls, example: str, units: dict[str, int], least: int = 1):
        cls.example, cls.units, cls.least = example, units, least

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read ``"64 MiB"``; raises ValueError with what was found and an example of what was expected."""
        match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"found {text!r}, expected a number and a unit such as {cls.example!r}")
        number, unit = match.groups()
        if unit not in cls.units:
            raise ValueError(f"found unit {unit!r}, expected one of {', '.join(cls.units)}")
        value = Decimal(number) * cls.units[unit]
        if not cls.least <= value < 2**63 or value != value.to_integral_value():
            kind = "a positive" if cls.least else "a non-negative"
            base = next(name for name, scale in cls.units.items() if scale == 1)
            raise ValueError(f"found {text!r}, expected {kind} whole number of {base} below 2^63")
        return cls(value)


def _of(unit: str, prefixes: dict[str, int] = _DECIMAL) -> dict[str, int]:
    """A unit with each prefix, and how many of the unit itself that is."""
    return {f"{prefix}{unit}": scale for prefix, scale in prefixes.items()}


class Bytes(Quantity, example="64 MiB", units=_of("B", _DECIMAL | _BINARY)):
    """Bytes."""


class BytesPerSecond(Quantity, example="1200 GB/s", units=_of("B/s")):
    """Bytes a second."""


class Hertz(Quantity, example="1.05 GHz", units=_of("Hz")):
    """Clock cycles a second."""


class FlopsPerSecond(Quantity, example="275 Tflop/s", units=_of("flop/s")):
    """Multiplications and additions a second."""


class ElementsPerSecond(Quantity, example="1 Telem/s", units=_of("elem/s")):
    """Elements a second, computed by everything that is no matrix product."""


class Picoseconds(Quantity, example="0.6 us", units={"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}, least=0):
    """Picoseconds; zero is allowed."""


def decode_hook(kind: type, value: Any) -> Any:
    """Let msgspec read quantities."""
    if issubclass(kind, Quantity):
        return kind.parse(value)
    raise NotImplementedError(kind)


def duration_ps(amount: int, per_second: int) -> int:
    """Time for ``amount`` units at ``per_second`` units a second, to the nearest picosecond (halves up)."""
    return (2 * amount * PS_PER_SECOND + per_second) // (2 * per_second)


#: A target file is a page of text; anything longer is not one.
MAX_TARGET_BYTES = 1 << 20

#: Dotted keys with more parts than this are refused: no target has them, and reading them takes time with their square.
_DEEP_KEY = re.compile(rb"""(?<![\w.\-])(?:(?:[\w\-]{1,99}|"[^"\n]{0,99}"|'[^'\n]{0,99}')\s*\.\s*){32}""")

T = TypeVar("T")


def is_path(name_or_path: str | Path) -> bool:
    """Whether this is a path: it ends in ``.toml`` or ``.json``, or has a path separator in it; otherwise it is a name."""
    if isinstance(name_or_path, Path):
        return True
    return name_or_path.endswith((".toml", ".json")) or "/" in name_or_path or "\\" in name_or_path


def decode_toml(data: bytes) -> dict[str, Any]:
    """Tables of a TOML file; raises InputError where it is none."""
    if _DEEP_KEY.search(data):
        raise InputError("found a key of more than 32 parts, expected a few")
    try:
        tables: dict[str, Any] = msgspec.toml.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        # ValueError: bytes that are not UTF-8, and numbers of thousands of digits.
        raise InputError(f"not a TOML file: {error}") from error
    except RecursionError as error:
        raise InputError("not a TOML file: lists or tables are nested too deep") from error
    return tables


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
    """Target files of one class: those that come with a package, and others by their paths, in TOML or, by name, in JSON."""

    target: type[T]
    package: str
    """Package in which the files lie that are known by name."""
    format_name: str | None
    """None for files that say neither format nor version."""
    version: int = 1
    noun: str = "target"
    formless: str = ""
    """What a file is that says neither format nor version, for messages."""
    made: Mapping[str, Callable[[], T]] = field(default_factory=dict)
    """Targets that are known by name without a file."""

    def names(self) -> tuple[str, ...]:
        """Names of the targets that come with the package, sorted."""
        entries = resources.files(self.package).iterdir()
        shipped = (entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))
        return tuple(sorted((*shipped, *self.made)))

    def load(self, name_or_path: str | Path) -> T:
        """Target of this name, or from a TOML file of this path (:func:`is_path`).

        Raises
        ------
        InputError
            An unknown name, a missing file, not TOML, a field that is missing, unknown or out of range.
        """
        if is_path(name_or_path):
            return self.decode(files.read_bytes(name_or_path, MAX_TARGET_BYTES), name_or_path)
        name, names = str(name_or_path), self.names()
        if name in self.made:
            return self.made[name]()
        if name not in names:
            raise InputError(f"found {self.noun} {name!r}, expected one of {', '.join(names)}, or the path of a .toml file")
        file = f"{name}.toml"
        return self.decode((resources.files(self.package) / file).read_bytes(), file)

    def decode(self, data: bytes, source: str | Path | None = None) -> T:
        """Target from the bytes of a file, JSON by its name, else TOML; raises InputError as :meth:`load` does."""
        try:
            with naming(source):
                is_json = source is not None and str(source).endswith(".json")
                head = files.decode_json(data, dict[str, Any], f"a {self.noun} file") if is_json else decode_toml(data)
                if self.format_name is None and "format" in head:
                    message = f"found {head['format']!r}, expected {self.formless}, whose file has no format"
                    raise InputError(message, place="format")
                for key, expected in (("format", self.format_name), ("version", self.version)):
                    if self.format_name is not None and head.get(key) != expected:
                        raise InputError(f"found {head.get(key)!r}, expected {expected!r}", place=key)
                return msgspec.convert(head, self.target, dec_hook=decode_hook)
        except msgspec.ValidationError as error:
            raise files.type_mismatch(error, self.target, source) from error
