"""Reads and writes files, above all files in the package's own formats.

Every file of the package states a ``format`` and a ``version``. Reading checks both, and unknown fields are errors. A file is
written under a temporary name in the folder of its target and then renamed, so that an interrupted write leaves either the old
file or the new one. Symbolic links are kept, and anything that is not a regular file (a device, a pipe, standard output) is
written to directly.

A file can also be locked (:func:`try_lock`). One process at a time has the lock, and the system releases it when that process
ends, however it ends.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import stat
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import msgspec

from stowplan.errors import InputError, naming

T = TypeVar("T")

#: Default limit on the size of a file in bytes, after decompression.
MAX_TEXT_BYTES = 1 << 30

#: The ``format`` of a damaged file is searched for in this many bytes at its beginning.
_HEAD_BYTES = 1 << 12

#: Maximum number of keys that an error message lists of an object of unknown format.
_MAX_KEYS_SHOWN = 8

#: Limit on the size of an archive of arrays, unpacked (bytes).
MAX_ARRAY_BYTES = 1 << 27

#: Limit on the length of a line in files that are read line by line (bytes).
MAX_LINE_BYTES = 1 << 20


#: The paths of files that have been read, while :func:`recording_reads` is active.
_recorded_reads: ContextVar[dict[str, None] | None] = ContextVar("read", default=None)


@contextlib.contextmanager
def recording_reads() -> Iterator[dict[str, None]]:
    """Context manager that records the paths of all files that are read in its block, as the keys of a dictionary, in the order
    in which each was read first. A file read in an inner block of this kind is recorded for that block only."""
    paths: dict[str, None] = {}
    token = _recorded_reads.set(paths)
    try:
        yield paths
    finally:
        _recorded_reads.reset(token)


def record_read(path: str | Path) -> None:
    """Records, for :func:`recording_reads`, a file that is read by other means than the functions of this module. Outside of
    such a block it does nothing."""
    paths = _recorded_reads.get()
    if paths is not None:
        paths[os.fspath(path)] = None


def write_atomic(path: str | Path, data: bytes) -> None:
    """Writes ``data`` to a temporary file in the folder of ``path`` and renames it to ``path``.

    A symbolic link is followed and kept. Anything that is not a regular file is written to directly: see :func:`open_through`.

    Raises
    ------
    InputError
        The folder does not exist, or the file or device cannot be written or is full.
    """
    try:
        handle = open_through(path)
        if handle is None:
            _write_and_rename(Path(os.path.realpath(path)), data)
        else:
            with open(handle, "wb") as stream:
                stream.write(data)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", source=path) from error


def _write_and_rename(target: Path, data: bytes) -> None:
    """Writes a temporary file and renames it to ``target``."""
    # The temporary name has only the last 60 characters of the target's, of at most four bytes each, because the target's own
    # name may already have the maximum length.
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[-60:]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        # mkstemp makes files that only their owner can read; a plan gets the permissions of any other new file of this user.
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def open_through(path: str | Path) -> int | None:
    """Opens a path that is not a regular file (a device, a pipe, standard output) for writing, and returns the descriptor.

    The caller closes it. Returns None for a regular file and for a file that does not exist. Opening a named pipe waits for its
    reader.

    Raises
    ------
    OSError
        The path is a folder, or cannot be opened for writing.
    """
    number = own_descriptor(path)
    if number is not None:
        # Text that was printed earlier has to be written first.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
        return os.dup(number)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(mode):
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return os.open(path, os.O_WRONLY | os.O_NOCTTY)


def own_descriptor(path: str | Path) -> int | None:
    """The descriptor of this process that a path refers to (``/dev/stdout``, ``/dev/fd/3``); None for all other paths.

    Such a file is written at its current position. Opening it anew by its path would begin at its start.
    """
    current = os.path.join(os.getcwd(), path)
    descriptor_folders = {os.path.realpath("/proc/self/fd"), "/dev/fd"}
    for _ in range(40):
        folder, name = os.path.split(current)
        folder = os.path.realpath(folder)
        if folder in descriptor_folders and name.isdecimal():
            return int(name)
        try:
            current = os.path.join(folder, os.readlink(os.path.join(folder, name)))
        except OSError:
            return None
    return None


def umask() -> int:
    """The permission bits that this process removes from new files and folders."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_bytes(path: str | Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    """The content of a plain or gzip file. A gzip file is recognized by its first bytes, not by its name.

    Raises
    ------
    InputError
        The file is missing, unreadable, a damaged or truncated gzip file, or longer than ``limit`` bytes.
    """
    with _unpacked(path) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"larger than the limit of {limit} bytes", source=path)
    return data


@contextlib.contextmanager
def _unpacked(path: str | Path) -> Iterator[IO[bytes]]:
    """Opens a plain or gzip file for reading; every error of reading it becomes an InputError."""
    try:
        with open(path, "rb") as stream:
            record_read(path)
            head = stream.read(2)
            stream.seek(0)
            if head != b"\x1f\x8b":
                yield stream
            else:
                with gzip.GzipFile(fileobj=stream) as unpacked:
                    yield cast(IO[bytes], unpacked)
    except EOFError as error:
        raise InputError("truncated gzip file: it ends before its end-of-stream marker", source=path) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"damaged gzip file: {error}", source=path) from error
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from error


def read_arrays(path: str | Path, what: str) -> dict[str, Any]:
    """All arrays of an archive that :func:`numpy.savez` wrote. Nothing in the archive is executed.

    Parameters
    ----------
    path
        The archive, plain or gzip.
    what
        Description of the expected file for error messages: ``a learned guide``.

    Raises
    ------
    InputError
        The file cannot be read, is damaged, unpacks to more than :data:`MAX_ARRAY_BYTES`, or has a member that is not an array
        of numbers or text.
    """
    import numpy as np

    data = read_bytes(path, MAX_ARRAY_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MAX_ARRAY_BYTES:
            raise InputError(f"found arrays of {size} bytes, expected at most {MAX_ARRAY_BYTES}", source=path)
        with np.load(io.BytesIO(data), allow_pickle=False) as stored:
            arrays = dict(stored)
        for name, array in arrays.items():
            # NumPy returns bytes for a member that does not begin like an array, and accepts text with numbers that are no
            # Unicode characters.
            is_array = isinstance(array, np.ndarray)
            if not is_array or (array.dtype.kind == "U" and _characters(array).max(initial=0) > sys.maxunicode):
                raise InputError("found no array of numbers or text", source=path, place=name)
        return arrays
    except InputError:
        raise
    except Exception as error:
        # zipfile, zlib, NumPy and the tokenizer with which NumPy reads headers each raise other errors for damaged bytes.
        reason = type(error).__name__
        raise InputError(f"found no readable archive of arrays ({reason}), expected {what}", source=path) from error


def _characters(text: Any) -> Any:
    """The code points of an array of text, in one dimension."""
    import numpy as np

    plain = np.ascontiguousarray(text, text.dtype.newbyteorder("="))
    return plain.reshape(-1).view(np.uint32) if plain.itemsize else np.zeros(0, np.uint32)


def read_lines(path: str | Path, limit: int = MAX_TEXT_BYTES, line_limit: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Yields the lines of a plain or gzip UTF-8 file, each with its line break, with one line in memory at a time.

    Raises
    ------
    InputError
        As for :func:`read_bytes`, and for a line of more than ``line_limit`` bytes or a line that is not UTF-8. All sizes are
        checked before the first line is yielded, because what a caller builds from the lines may take many times their bytes.
    """
    with _unpacked(path) as stream:
        total = 0
        for number, line in enumerate(iter(lambda: stream.readline(line_limit + 1), b""), 1):
            total += len(line)
            if total > limit:
                raise InputError(f"larger than the limit of {limit} bytes", source=path)
            if len(line) > line_limit:
                raise InputError(f"longer than the limit of {line_limit} bytes", source=path, place=f"line {number}")
    with _unpacked(path) as stream:
        for number, line in enumerate(stream, 1):
            yield _decoded(line, path, number)


def _decoded(data: bytes, path: str | Path, first_line: int = 1) -> str:
    """Decodes UTF-8; an InputError names the line of the first invalid byte."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + first_line
        raise InputError(
            f"found byte 0x{data[error.start]:02x}, expected UTF-8 text", source=path, place=f"line {line}"
        ) from error


def head(path: str | Path) -> bytes:
    """The first 64 bytes of a plain or gzip file, unpacked; empty if it cannot be read."""
    try:
        with _unpacked(path) as stream:
            return stream.read(64)
    except InputError:
        return b""


def is_json(path: str | Path) -> bool:
    """Whether a plain or gzip file begins like a JSON object or list; False if it cannot be read."""
    return head(path).lstrip()[:1] in (b"{", b"[")


def printable(path: str | Path) -> str:
    """A path as text that can be stored in JSON: bytes of it that are not UTF-8 are written as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def read_text(path: str | Path, limit: int = MAX_TEXT_BYTES) -> str:
    """Content of a plain or gzip UTF-8 file; raises :class:`InputError` as :func:`read_bytes` does, and if it is not UTF-8."""
    return _decoded(read_bytes(path, limit), path)


#: Errors that msgspec raises for bytes that are not JSON, or that are nested too deeply.
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Head(msgspec.Struct):
    format: str | None = None
    version: int | None = None


def encode(value: object) -> bytes:
    """A value as indented JSON with a newline at the end. Equal values give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def digest(value: object) -> str:
    """The SHA-256 hash, in hexadecimal digits, of a value's JSON."""
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()


def decode(data: bytes, kind: type[T], *, format_name: str, version: int, source: str | Path | None = None) -> T:
    """Decodes JSON into ``kind``, after checking its ``format`` and ``version``.

    Parameters
    ----------
    data
        The JSON text.
    kind
        The type to decode into.
    format_name, version
        The expected values of the fields ``format`` and ``version``.
    source
        The file for error messages, if any.

    Raises
    ------
    InputError
        The data is not JSON, or has another format or version, an unknown, missing or repeated field, or a value of a wrong
        type. The message names the field.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
    except _DECODE_ERRORS as error:
        raise InputError(f"not a {format_name} file: {error}", source=source) from error
    if head.format != format_name:
        raise InputError(f"found format {head.format!r}, expected {format_name!r}", source=source, place="format")
    if head.version != version:
        raise InputError(f"found version {head.version!r}, expected {version}", source=source, place="version")
    return decode_json(data, kind, f"a {format_name} file", source)


def decode_json(data: bytes, kind: type[T], what: str, source: str | Path | None = None) -> T:
    """Decodes JSON into ``kind`` without checking a format. ``what`` describes the expected data in messages: ``a layer file``.

    Raises
    ------
    InputError
        The data is not JSON, or has an unknown, missing or repeated field, or a value of a wrong type. The message names the
        field.
    """
    try:
        with naming(source):
            value = msgspec.json.decode(data, type=kind)
            # msgspec silently keeps only the last value of a field that occurs twice. Then the decoded value has fewer colons
            # than the data, and the slower parser of the standard library looks for the field.
            if msgspec.json.encode(msgspec.json.decode(data)).count(b":") < data.count(b":"):
                json.loads(data, object_pairs_hook=_refuse_duplicate_fields)
            return value
    except msgspec.ValidationError as error:
        raise type_mismatch(error, kind, source) from error
    except _DECODE_ERRORS as error:
        raise InputError(f"not {what}: {error}", source=source) from error


def _refuse_duplicate_fields(pairs: list[tuple[str, Any]]) -> None:
    """Raises InputError if a field occurs twice in an object."""
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise InputError(f"found the field {name!r} {times} times in one object, expected it once")


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents if they are missing; raises InputError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder: {error.strerror or error}", source=folder) from error


def type_mismatch(error: msgspec.ValidationError, kind: Any, source: str | Path | None = None, at: str = "") -> InputError:
    """Makes an InputError from a msgspec error about a value that does not fit its type.

    The message says where the value is. For an unknown field it suggests a similar one or lists all fields, and for a value
    that is not among the allowed ones it lists these.

    Parameters
    ----------
    error
        The error of msgspec.
    kind
        The type that was expected.
    source
        File of the value, if any.
    at
        Place in the file of the value that was decoded; msgspec gives places relative to it.
    """
    message, _, path = str(error).partition(" - at `")
    path = path.rpartition("`$")[2].rstrip("`").removeprefix("$")
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", message):
        names = dict.fromkeys(f.encode_name for info in _types_at(kind, path) for f in getattr(info, "fields", ()))
        meant = difflib.get_close_matches(unknown[1], names, 1)
        message += f", expected `{meant[0]}`" if meant else f", expected one of {', '.join(names)}" if names else ""
    elif message.startswith("Invalid enum value"):
        choices = dict.fromkeys(repr(value) for info in _types_at(kind, path) for value in getattr(info, "values", ()))
        message += f", expected one of {', '.join(choices)}" if choices else ""
    return InputError(message, source=source, place=(at + path).removeprefix(".") or None)


def _types_at(kind: Any, path: str) -> list[Any]:
    """Descriptions of all types that the value at a place may have. Places are written as by msgspec: ``.banks[0].name``."""
    types = [*_alternatives(msgspec.inspect.type_info(kind))]
    for name in re.findall(r"\.(\w+)|\[", path):
        inner = [f.type for info in types for f in getattr(info, "fields", ()) if f.encode_name == name]
        inner += [] if name else [part for info in types for part in msgspec.structs.astuple(info)]
        types = [info for part in inner for info in _alternatives(part)]
    return types


def _alternatives(info: Any) -> Iterator[Any]:
    """The members of a union or of a tuple of types; for any other type, the type itself."""
    for part in info.types if isinstance(info, msgspec.inspect.UnionType) else info if isinstance(info, tuple) else [info]:
        if isinstance(part, msgspec.inspect.Type):
            yield part


def peek_format(data: bytes) -> str | None:
    """The ``format`` field of a JSON object; None if there is none, or if the data is no valid JSON object."""
    if data.lstrip()[:1] != b"{":
        return None
    try:
        return msgspec.json.decode(data, type=_Head).format
    except _DECODE_ERRORS:
        return None


def describe(data: bytes) -> str:
    """Describes data that was expected to be a JSON file of this package, for error messages: ``format 'x'``, ``no JSON
    object``, ..."""
    if data.lstrip()[:1] not in (b"{", b"["):
        return "no JSON object"
    try:
        value = msgspec.json.decode(data)
    except _DECODE_ERRORS as error:
        format_match = re.search(rb'"format"\s*:\s*"(\w+(?:\.\w+)*)"', data[:_HEAD_BYTES])
        return f"damaged JSON ({error})" + (f" of the format {format_match[1].decode()!r}" if format_match else "")
    if isinstance(value, dict) and "format" in value:
        return f"format {value['format']!r}"
    example = value[0] if isinstance(value, list) and value else value
    keys = f"the keys {', '.join(list(example)[:_MAX_KEYS_SHOWN])}" if isinstance(example, dict) and example else ""
    if isinstance(value, list):
        return f"no JSON object but a list of {len(value)}" + (f", the first an object with {keys}" if keys else "")
    return f"a JSON object without a format{f', with {keys}' if keys else ''}"


def try_lock(path: str | Path, mode: int = 0o600) -> int | None:
    """Locks a file, which is created if it is missing. The process that has the lock may remove the file before it closes it.

    Parameters
    ----------
    path
        The file; its folder must exist.
    mode
        Permissions of a new file.

    Returns
    -------
    int or None
        The file's descriptor, which children do not inherit; closing it releases the lock. None if another process has the
        lock.

    Raises
    ------
    OSError
        The file cannot be created, or its file system does not support locks.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            os.close(handle)
            raise
        # The previous owner of the lock removed the file in the meantime.
        os.close(handle)
