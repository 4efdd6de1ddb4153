"""Reading and writing the package's own files.

Every file carries a ``format`` and a ``version``; reading checks both, and unknown fields are errors. A file is written to a
temporary name beside its target and renamed, so an interrupted write leaves either the old file or the new one. Symbolic links
stay, and what is no regular file (a device, a pipe, standard output) is written through.

A lock on a file is held by one process at a time, and let go by the system when that process ends, however it ends.
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

#: Readers refuse files larger than this unless told otherwise (bytes, after decompression).
MAX_TEXT_BYTES = 1 << 30

#: The format of a damaged file is looked for in the first bytes.
_HEAD_BYTES = 1 << 12

#: Keys that are named of an object that is none of ours.
_MOST_KEYS = 8

#: Archives of arrays are no larger than this, unpacked (bytes).
MAX_ARRAY_BYTES = 1 << 27

#: What is read line by line has no line longer than this (bytes).
MAX_LINE_BYTES = 1 << 20


#: Files that were read, where somebody wants to know.
_read: ContextVar[dict[str, None] | None] = ContextVar("read", default=None)


@contextlib.contextmanager
def noting_reads() -> Iterator[dict[str, None]]:
    """Notes the paths of all files that are read within, in the order in which they are read first."""
    paths: dict[str, None] = {}
    token = _read.set(paths)
    try:
        yield paths
    finally:
        _read.reset(token)


def note_read(path: str | Path) -> None:
    """Note that a file is read by other means than those of this module."""
    paths = _read.get()
    if paths is not None:
        paths[os.fspath(path)] = None


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write ``data`` to ``path`` by way of a temporary file in the same folder and a rename.

    A symbolic link is followed, and stays. What is no regular file is written through: see :func:`open_through`.

    Raises
    ------
    InputError
        If the folder does not exist, or the file or device cannot be written or is full.
    """
    try:
        handle = open_through(path)
        if handle is None:
            _replace(Path(os.path.realpath(path)), data)
        else:
            with open(handle, "wb") as stream:
                stream.write(data)
    except OSError as error:
        raise InputError(f"cannot write: {error.strerror or error}", source=path) from error


def _replace(target: Path, data: bytes) -> None:
    # The end of the name alone, of at most four bytes a character: a file's own name may be as long as names can be.
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[-60:]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        # mkstemp makes private files; a plan is as public as any file its user makes.
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def open_through(path: str | Path) -> int | None:
    """Descriptor for writing to what is no regular file: a device, a pipe, standard output; the caller closes it.

    None for a regular file, and for one that is not there yet. Opening a named pipe waits for its reader.

    Raises
    ------
    OSError
        If it is a folder, or cannot be opened for writing.
    """
    number = own_descriptor(path)
    if number is not None:
        # What was printed before comes first.
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
    """Number of the open file of this process that a path stands for (``/dev/stdout``, ``/dev/fd/3``), None for other paths.

    Such a file is written where it stands: opening it by its path again would begin at its start.
    """
    at = os.path.join(os.getcwd(), path)
    own = {os.path.realpath("/proc/self/fd"), "/dev/fd"}
    for _ in range(40):
        folder, name = os.path.split(at)
        folder = os.path.realpath(folder)
        if folder in own and name.isdecimal():
            return int(name)
        try:
            at = os.path.join(folder, os.readlink(os.path.join(folder, name)))
        except OSError:
            return None
    return None


def umask() -> int:
    """Permissions that new files and folders of this process are without."""
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
    with _unpacked(path) as stream:
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise InputError(f"larger than the limit of {limit} bytes", source=path)
    return data


@contextlib.contextmanager
def _unpacked(path: str | Path) -> Iterator[IO[bytes]]:
    """A plain or gzip file, opened; whatever goes wrong with it becomes an InputError."""
    try:
        with open(path, "rb") as stream:
            note_read(path)
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
    """All arrays of an archive that :func:`numpy.savez` wrote; nothing in it is run.

    Parameters
    ----------
    what
        What was expected, for messages: ``a learned guide``.

    Raises
    ------
    InputError
        It cannot be read, is damaged, or unpacks to more than :data:`MAX_ARRAY_BYTES`.
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
            # What does not begin as an array comes as bytes; and NumPy makes text of numbers that are no characters.
            is_array = isinstance(array, np.ndarray)
            if not is_array or (array.dtype.kind == "U" and _characters(array).max(initial=0) > sys.maxunicode):
                raise InputError("found no array of numbers or text", source=path, place=name)
        return arrays
    except InputError:
        raise
    except Exception as error:
        # For damaged bytes zip, zlib, NumPy and the tokenizer that it reads headers with each raise something else.
        reason = type(error).__name__
        raise InputError(f"found no readable archive of arrays ({reason}), expected {what}", source=path) from error


def _characters(text: Any) -> Any:
    """Numbers of the characters of an array of text."""
    import numpy as np

    plain = np.ascontiguousarray(text, text.dtype.newbyteorder("="))
    return plain.reshape(-1).view(np.uint32) if plain.itemsize else np.zeros(0, np.uint32)


def read_lines(path: str | Path, limit: int = MAX_TEXT_BYTES, line_limit: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Lines of a plain or gzip UTF-8 file, each with its line break, one in memory at a time.

    Raises
    ------
    InputError
        As :func:`read_bytes`, and for a line of more than ``line_limit`` bytes. Sizes are looked at before the first line is
        given: what is made of the lines may take many times their bytes.
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
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + first_line
        raise InputError(
            f"found byte 0x{data[error.start]:02x}, expected UTF-8 text", source=path, place=f"line {line}"
        ) from error


def head(path: str | Path) -> bytes:
    """The first bytes of a plain or gzip file, unpacked; none where it cannot be read."""
    try:
        with _unpacked(path) as stream:
            return stream.read(64)
    except InputError:
        return b""


def is_json(path: str | Path) -> bool:
    """Whether a plain or gzip file begins like a JSON object or list; False where it cannot be read."""
    return head(path).lstrip()[:1] in (b"{", b"[")


def printable(path: str | Path) -> str:
    """A path as text for files of ours: bytes of it that are not UTF-8 stand as ``\\xff``."""
    return os.fsencode(path).decode("utf-8", errors="backslashreplace")


def read_text(path: str | Path, limit: int = MAX_TEXT_BYTES) -> str:
    """Content of a plain or gzip UTF-8 file; raises :class:`InputError` as :func:`read_bytes` does."""
    return _decoded(read_bytes(path, limit), path)


#: What msgspec raises for bytes that are not JSON, or nested beyond reason.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Head(msgspec.Struct):
    format: str | None = None
    version: int | None = None


def encode(value: object) -> bytes:
    """JSON of a value, indented, one trailing newline; equal values give equal bytes."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def digest(value: object) -> str:
    """Hex SHA-256 of a value's JSON."""
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()


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
    return decode_json(data, kind, f"a {format_name} file", source)


def decode_json(data: bytes, kind: type[T], what: str, source: str | Path | None = None) -> T:
    """Decode JSON that need not have a format into ``kind``; ``what`` it should be is for messages: ``a layer file``.

    Raises
    ------
    InputError
        Not JSON, an unknown or missing field, or a value of a wrong type; the message names the field.
    """
    try:
        with naming(source):
            value = msgspec.json.decode(data, type=kind)
            # Fewer fields come out than went in where one is there twice: only its last value would count.
            if msgspec.json.encode(msgspec.json.decode(data)).count(b":") < data.count(b":"):
                json.loads(data, object_pairs_hook=_once)
            return value
    except msgspec.ValidationError as error:
        raise misfit(error, kind, source) from error
    except _UNREADABLE as error:
        raise InputError(f"not {what}: {error}", source=source) from error


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Raise InputError for a field that an object has twice."""
    for name, times in Counter(name for name, _ in pairs).items():
        if times > 1:
            raise InputError(f"found the field {name!r} {times} times in one object, expected it once")


def make_folder(folder: Path) -> None:
    """Make a folder and those around it, where they are missing; raises InputError where that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder: {error.strerror or error}", source=folder) from error


def misfit(error: msgspec.ValidationError, kind: Any, source: str | Path | None = None, at: str = "") -> InputError:
    """The InputError of a value that does not fit a type: where it is, for an unknown field the one that may be meant or all
    that there are, and for a value that is none of the choices these.

    Parameters
    ----------
    at
        Place in the file of the value that did not fit as a whole.
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
    """Descriptions of all types that the value at a place may have; places are msgspec's, as ``.banks[0].name``."""
    types = [*_alternatives(msgspec.inspect.type_info(kind))]
    for name in re.findall(r"\.(\w+)|\[", path):
        inner = [f.type for info in types for f in getattr(info, "fields", ()) if f.encode_name == name]
        inner += [] if name else [part for info in types for part in msgspec.structs.astuple(info)]
        types = [info for part in inner for info in _alternatives(part)]
    return types


def _alternatives(info: Any) -> Iterator[Any]:
    """The types of a union, of a tuple, or a type itself."""
    for part in info.types if isinstance(info, msgspec.inspect.UnionType) else info if isinstance(info, tuple) else [info]:
        if isinstance(part, msgspec.inspect.Type):
            yield part


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
    if data.lstrip()[:1] not in (b"{", b"["):
        return "no JSON object"
    try:
        value = msgspec.json.decode(data)
    except _UNREADABLE as error:
        said = re.search(rb'"format"\s*:\s*"(\w+(?:\.\w+)*)"', data[:_HEAD_BYTES])
        return f"damaged JSON ({error})" + (f" of the format {said[1].decode()!r}" if said else "")
    if isinstance(value, dict) and "format" in value:
        return f"format {value['format']!r}"
    example = value[0] if isinstance(value, list) and value else value
    keys = f"the keys {', '.join(list(example)[:_MOST_KEYS])}" if isinstance(example, dict) and example else ""
    if isinstance(value, list):
        return f"no JSON object but a list of {len(value)}" + (f", the first an object with {keys}" if keys else "")
    return f"a JSON object without a format{f', with {keys}' if keys else ''}"


def try_lock(path: str | Path, mode: int = 0o600) -> int | None:
    """Lock a file, which is made where it is missing; whoever has it may remove the file before closing it.

    Parameters
    ----------
    path
        In a folder that is there.
    mode
        Permissions of a new file.

    Returns
    -------
    int or None
        Its descriptor, which no child inherits: closing it lets go. None where another has it.

    Raises
    ------
    OSError
        The file cannot be made, or its file system knows no locks.
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
        # Whoever had it has removed it in the meantime.
        os.close(handle)
