"""Reads files that contain a problem already: JSON files of any kind, as ``stowplan convert`` writes them, and CSV files of
buffers to pack.

A problem is of one of nine *kinds*, such as packing; :mod:`stowplan.kinds` describes each of them. The formats at the end of
this module are entries of the registry of :mod:`stowplan.frontends.formats`, which says what their functions must do.
"""

from __future__ import annotations

import difflib

from stowplan import files, kinds
from stowplan.errors import InputError
from stowplan.file_uses import use_of
from stowplan.frontends.formats import InputFormat, Opened, Source
from stowplan.frontends.options import ReadOptions
from stowplan.models.packing import csv_files

#: Values of the field ``format`` in JSON files that other front ends read. If a file has a similar value, an error message
#: suggests one of them.
_OTHERS = ("stowplan.layers",)
#: The end of an error message for JSON that is no input.
_EXPECTED = (
    "a problem (stowplan.KIND.problem), a layer file (stowplan.layers), a graph of operators and tensors, "
    "or a data-flow graph of nodes and edges"
)

#: Error message for a list of nodes by CGRA-Mapper. An edge of a loop body has a *distance*, the number of iterations between
#: its two nodes. These files have no distances, and with guessed ones the file would describe another loop.
_OPENCGRA = (
    "found a graph by CGRA-Mapper for OpenCGRA, which does not say which of its edges (pre, succ) are of an earlier iteration; "
    "expected a data-flow graph in JSON (NetworkX, Morpher) or DOT, its edges with distances (docs/reference/loop-bodies.md)"
)


def _open(source: Source, options: ReadOptions) -> Opened:
    """Reads the problem, changed by the options; raises InputError if the file is no valid problem."""
    kind = _kind(source)
    return Opened(kind.amended(kind.problem.decode(source.data or b"", source.path), options.given()))


def _accepts(source: Source) -> frozenset[str]:
    """The options that can still change a finished problem of the file's kind, such as ``capacity``."""
    return frozenset(_kind(source).amends)


def _kind(source: Source) -> kinds.BaseKind:
    """The kind of a problem file; raises InputError for JSON that is no input."""
    data = source.data or b""
    declared = files.peek_format(data)
    kind = kinds.of_format(declared, "problem")
    if kind is not None:
        return kind
    if b'"JSON_opt"' in data and not declared:
        raise InputError(_OPENCGRA, source=source.path)
    place = None if declared is None else "format"
    if use := use_of(declared, source.path):
        raise InputError(f"found format {declared!r}, expected an input: this is {use}", source=source.path, place=place)
    meant = difflib.get_close_matches(declared or "", (*kinds.formats("problem"), *_OTHERS), 1)
    expected = repr(meant[0]) if meant else _EXPECTED
    raise InputError(f"found {files.describe(data)}, expected {expected}", source=source.path, place=place)


def _is_input(source: Source) -> bool:
    """Whether a JSON file in a folder is a problem."""
    return kinds.of_format(files.peek_format(source.data or b""), "problem") is not None


#: This format accepts all JSON that no other format accepts.
FORMAT = InputFormat(
    what="a problem already",
    suffixes=(".json",),
    accepts=_accepts,
    matches=lambda source: source.data is not None,
    open=_open,
    is_input=_is_input,
)

PACKING_CSV = InputFormat(
    what="a list of buffers to pack",
    suffixes=(".csv",),
    accepts=lambda source: frozenset({"capacity"}),
    matches=lambda source: source.data is None and csv_files.is_packing_csv(source.path),
    open=lambda source, options: Opened(csv_files.read_problem(source.path, options.capacity)),
)
