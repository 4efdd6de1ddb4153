"""Problem files among the inputs: what ``stowplan convert`` wrote, of any kind."""

from __future__ import annotations

from stowplan import files, kinds
from stowplan.frontends.format import InputFormat, Opened, Source
from stowplan.frontends.options import ReadOptions


def _open(source: Source, options: ReadOptions) -> Opened:
    data = source.data or b""
    kind = kinds.of_problem_file(data, source.path)
    return Opened(kind.amended(kind.decode_problem(data, source.path), options.given()))


def _accepts(source: Source) -> frozenset[str]:
    return frozenset(kinds.of_problem_file(source.data or b"", source.path).amends)


def _is_input(source: Source) -> bool:
    return files.peek_format(source.data or b"") in {kind.problem_format for kind in kinds.registered()}


FORMAT = InputFormat(
    what="a problem already",
    suffixes=(".json",),
    accepts=_accepts,
    matches=lambda source: source.data is not None,
    open=_open,
    is_input=_is_input,
)
