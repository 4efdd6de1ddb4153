"""Reads target files of all kinds: TOML with a format and version, quantities with units, and errors that name the field.

Quantities in files have units, such as ``"64 MiB"`` or ``"1200 GB/s"``. They become integers in base units: bytes, bytes per
second, hertz, operations per second, elements per second and picoseconds, so that costs are exact. The prefixes
``k, M, G, T, P`` are powers of 1000, and ``Ki, Mi, Gi`` are powers of 1024. Target files of all kinds are read by a
:class:`TargetFiles`, one for each class of targets.
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

#: A number and a unit, and the factors of the prefixes of units.
_QUANTITY = re.compile(r"([+-]?[0-9]{1,15}(?:\.[0-9]{1,12})?)\s*(\S+)")
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


class Quantity(int):
    """An integer number of base units. Subclasses define the units."""

    example: ClassVar[str]
    """A text for error messages, such as ``64 MiB``."""
    units: ClassVar[dict[str, int]]
    """The units that a text may have, with their sizes in base units."""
    least: ClassVar[int]
    """The smallest number that a text may have: 1, or 0 in some subclasses."""

    def __init_subclass__(cls, example: str, units: dict[str, int], least: int = 1):
        cls.example, cls.units, cls.least = example, units, least

    @classmethod
    def parse(cls, text: object) -> Self:
        """Reads a text such as ``"64 MiB"``; raises ValueError with an example if it is no such quantity."""
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
    """Returns the unit with each prefix, such as ``kHz``, and the number of units without a prefix that it stands for."""
    return {f"{prefix}{unit}": scale for prefix, scale in prefixes.items()}


class Bytes(Quantity, example="64 MiB", units=_of("B", _DECIMAL | _BINARY)):
    """A number of bytes."""


class BytesPerSecond(Quantity, example="1200 GB/s", units=_of("B/s")):
    """A bandwidth in bytes per second."""


class Hertz(Quantity, example="1.05 GHz", units=_of("Hz")):
    """A clock rate in cycles per second."""


class FlopsPerSecond(Quantity, example="275 Tflop/s", units=_of("flop/s")):
    """A rate of multiplications and additions per second."""


class ElementsPerSecond(Quantity, example="1 Telem/s", units=_of("elem/s")):
    """A rate of computed elements per second, for operations without a matrix product."""


class Picoseconds(Quantity, example="0.6 us", units={"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}, least=0):
    """A duration in picoseconds, which may be zero."""


def decode_hook(kind: type, value: Any) -> Any:
    """Parses a quantity; msgspec calls this function, its ``dec_hook``, for types that it does not know.

    Raises ValueError if the text is no such quantity, and NotImplementedError for any other type.
    """
    if issubclass(kind, Quantity):
        return kind.parse(value)
    raise NotImplementedError(kind)


def duration_ps(amount: int, per_second: int) -> int:
    """Time for ``amount`` units at ``per_second`` units per second, rounded to the nearest picosecond (halves up)."""
    return (2 * amount * PS_PER_SECOND + per_second) // (2 * per_second)


#: Files with more bytes are refused. A target file has about one page.
MAX_TARGET_BYTES = 1 << 20

#: Matches dotted keys with more than 32 parts. They are refused, since no target has such keys and the time to parse them is
#: quadratic.
_DEEP_KEY = re.compile(rb"""(?<![\w.\-])(?:(?:[\w\-]{1,99}|"[^"\n]{0,99}"|'[^'\n]{0,99}')\s*\.\s*){32}""")

T = TypeVar("T")


def is_path(name_or_path: str | Path) -> bool:
    """Whether ``name_or_path`` is a path and not a name: it is a :class:`~pathlib.Path`, ends in ``.toml`` or ``.json``, or
    contains a path separator. The file need not exist."""
    if isinstance(name_or_path, Path):
        return True
    return name_or_path.endswith((".toml", ".json")) or "/" in name_or_path or "\\" in name_or_path


def decode_toml(data: bytes) -> dict[str, Any]:
    """The contents of a TOML file as dictionaries; raises InputError if it is not a valid TOML file."""
    if _DEEP_KEY.search(data):
        raise InputError("found a key of more than 32 parts, expected a few")
    try:
        tables: dict[str, Any] = msgspec.toml.decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        # ValueError is raised for bytes that are not UTF-8, and for numbers with thousands of digits.
        raise InputError(f"not a TOML file: {error}") from error
    except RecursionError as error:
        raise InputError("not a TOML file: lists or tables are nested too deep") from error
    return tables


#: Folder of the templates in this package, one for each kind of problem with targets.
_TEMPLATES = resources.files(__name__.rpartition(".")[0]) / "templates"


def template_kinds() -> tuple[str, ...]:
    """The names of the kinds of problems for which there is a template of a target file, sorted."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _TEMPLATES.iterdir() if entry.name.endswith(".toml")))


def template(kind: str) -> str:
    """The text of a target file with every field and comments, from which users make their own files.

    ``kind`` is one of :func:`template_kinds`, where underscores may stand for hyphens.

    Raises
    ------
    InputError
        There is no template for this kind of problem.
    """
    name = kind.replace("_", "-")
    if name not in template_kinds():
        raise InputError(f"found kind {kind!r}, expected one of {', '.join(template_kinds())}")
    return (_TEMPLATES / f"{name}.toml").read_text(encoding="utf-8")


@dataclass(frozen=True)
class TargetFiles(Generic[T]):
    """The target files of one class: files in a package, which have names, and other files, which have paths.

    Files are in TOML; those whose names end in ``.json`` are in JSON.
    """

    target: type[T]
    """The class."""
    package: str
    """Name of the package whose files are known by name."""
    format_name: str | None
    """Value of the field ``format``; None for files without format and version."""
    version: int = 1
    """Value of the field ``version``."""
    noun: str = "target"
    """Noun for such a target in messages."""
    formless: str = ""
    """Description, for messages, of files without format and version."""
    builders: Mapping[str, Callable[[], T]] = field(default_factory=dict)
    """Functions that build the targets that have a name but no file."""

    def names(self) -> tuple[str, ...]:
        """The names of the targets in the package, sorted."""
        entries = resources.files(self.package).iterdir()
        shipped = (entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))
        return tuple(sorted((*shipped, *self.builders)))

    def load(self, name_or_path: str | Path) -> T:
        """Loads the target with this name, or the target in the file with this path (:func:`is_path`).

        Raises
        ------
        InputError
            There is no target with this name; the file does not exist or is not valid TOML or JSON; or a field is missing,
            unknown or out of range.
        """
        if is_path(name_or_path):
            return self.decode(files.read_bytes(name_or_path, MAX_TARGET_BYTES), name_or_path)
        name, names = str(name_or_path), self.names()
        if name in self.builders:
            return self.builders[name]()
        if name not in names:
            raise InputError(f"found {self.noun} {name!r}, expected one of {', '.join(names)}, or the path of a .toml file")
        file = f"{name}.toml"
        return self.decode((resources.files(self.package) / file).read_bytes(), file)

    def decode(self, data: bytes, source: str | Path | None = None) -> T:
        """Reads a target from the contents of a file, which is JSON if ``source`` ends in ``.json``, otherwise TOML.

        Raises
        ------
        InputError
            The contents are not valid, as for :meth:`load`.
        """
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
