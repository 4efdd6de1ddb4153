"""Reading and writing the package's own files.

Every file carries a ``format`` and a ``version``; reading checks both, and unknown fields are errors. A file is written to a
temporary name beside its target and renamed, so an interrupted write leaves either the old file or the new one.
"""

from __future__ import annotations

import gzip
import os
import tempfile
import zlib
from pathlib import Path
from typing import TypeVar

import msgspec

from stowplan.errors import InputError

T = TypeVar("T")

#: Readers refuse files larger than this unless told otherwise (bytes, after decompression).
MAX_TEXT_BYTES = 1 << 30


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path`` by way of a temporary file in the same folder and a rename.

    Raises
    ------
    InputError
        If the folder does not exist or cannot be written.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", source=target) from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        # mkstemp makes private files; a plan is as public as any file its user makes.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"cannot write: {error.strerror or error}", source=target) from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_bytes(path: str | Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Content of a plain or gzip file (told apart by content, not by name).

    Raises
    ------
    InputError
        If the file is missing, unreadable, a damaged or truncated gzip file, or longer than ``limit`` bytes.
    """
    try:
        with open(path, "rb") as stream:
            head = stream.read(2)
            stream.seek(0)
            if head != b"\x1f\x8b":
                data = stream.read(limit + 1)
            else:
                with gzip.GzipFile(fileobj=stream) as unpacked:
                    data = unpacked.read(limit + 1)
    except EOFError as error:
        raise InputError("truncated gzip file: it ends before its end-of-stream marker", source=path) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"damaged gzip file: {error}", source=path) from error
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from error
    if len(data) > limit:
        raise InputError(f"larger than the limit of {limit} bytes", source=path)
    return data


def is_json(path: str | Path) -> bool:
    """Whether a plain or gzip file begins like a JSON object; False where it cannot be read."""
    try:
        with open(path, "rb") as stream:
            if stream.read(2) != b"\x1f\x8b":
                stream.seek(0)
                return stream.read(64).lstrip()[:1] == b"{"
            stream.seek(0)
            with gzip.GzipFile(fileobj=stream) as unpacked:
                return unpacked.read(64).lstrip()[:1] == b"{"
    except (OSError, EOFError, zlib.error):
        return False


def printable(path: str | Path) -> str:
    """A path as text for files of ours: bytes of it that are not UTF-8 stand as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def read_text(path: str | Path, limit: int = MAX_TEXT_BYTES) -> str:
    """Content of a plain or gzip UTF-8 file; raises :class:`InputError` as :func:`read_bytes` does."""
    data = read_bytes(path, limit)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"found byte 0x{data[error.start]:02x}, expected UTF-8 text", source=path, place=f"line {line}"
        ) from error


#: What msgspec raises for bytes that are not JSON, or nested beyond reason.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Head(msgspec.Struct):
    format: str | None = None
    version: int | None = None


def encode(value: object) -> bytes:
    """JSON of a value, indented, one trailing newline; equal values give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def decode(data: bytes, kind: type[T], *, format_name: str, version: int, source: str | Path | None = None) -> T:
    """Decode JSON into ``kind`` after checking its ``format`` and ``version``.

    Raises
    ------
    InputError
        Not JSON, another format or version, an unknown or missing field, or a value of a wrong type; the message names
        the field.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except _UNREADABLE as error:
        raise InputError(f"not a {format_name} file: {error}", source=source) from error
    if head.format != format_name:
        raise InputError(f"found format {head.format!r}, expected {format_name!r}", source=source, place="format")
    if head.version != version:
        raise InputError(f"found version {head.version!r}, expected {version}", source=source, place="version")
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise InputError(message, source=source, place=path.rstrip("`") or None) from error
    except InputError as error:
        raise (error if source is None else error.within(source)) from None
    except _UNREADABLE as error:
        raise InputError(f"not a {format_name} file: {error}", source=source) from error


def peek_format(data: bytes) -> str | None:
    """The ``format`` of a JSON file of ours, or None where it is not one."""
    if data.lstrip()[:1] != b"{":
        return None
    try:
        return msgspec.json.decode(data, type=_Head).format
    except _UNREADABLE:
        return None


def describe(data: bytes) -> str:
    """What a file holds that was expected to be JSON of ours, for an error message: ``format 'x'``, ``no JSON object`` ..."""
    if data.lstrip()[:1] != b"{":
        return "no JSON object"
    try:
        found = msgspec.json.decode(data, type=_Head).format
    except _UNREADABLE as error:
        return f"damaged JSON ({error})"
    return "a JSON object without a format" if found is None else f"format {found!r}"
