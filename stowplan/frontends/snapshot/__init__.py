"""Front end for memory snapshots of PyTorch, which are recognized by their first bytes or by their name.

A snapshot, which ``torch.cuda.memory._dump_snapshot`` writes, has a trace of all allocations of a GPU, and the memory at its
end. A *segment* is a range of memory that PyTorch's caching allocator has reserved from the device, and a *block* is the part
of a segment that it gives to one allocation. The problem is to pack the allocations. A module imports only modules that come
before it in this list:

- ``plain_pickle``: reads pickles of plain data, and refuses all others before anything in them runs
- ``trace``: the allocations and segments of one device
- ``replay``: replays the trace to find sizes of blocks, and their layout
- ``findings``: compares PyTorch's layout with a plan, and says how much of the reserved memory is fragmentation
"""

from __future__ import annotations

from stowplan import files
from stowplan.errors import InputError, naming
from stowplan.frontends.formats import InputFormat, Opened, Source
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.snapshot.plain_pickle import MAX_BYTES, is_pickle, load
from stowplan.frontends.snapshot.trace import read_trace


def _open(source: Source, options: ReadOptions) -> Opened:
    from stowplan.frontends.snapshot.findings import Findings

    name = source.path.name.lower().removesuffix(".gz").rpartition(".")[0]
    with naming(source.path):
        data = files.read_bytes(source.path, MAX_BYTES)
        if not is_pickle(data):
            raise InputError("found no pickle of protocol 2 to 5, expected what torch.cuda.memory._dump_snapshot writes")
        trace = read_trace(load(data), options.device)
        findings = Findings(trace, name, options.capacity)
        return Opened(findings.problem, findings=findings)


def _matches(source: Source) -> bool:
    has_suffix = source.path.name.lower().removesuffix(".gz").endswith(".pickle")
    return source.data is None and (has_suffix or is_pickle(files.head(source.path)))


FORMAT = InputFormat(
    what="a memory snapshot of PyTorch",
    suffixes=(".pickle",),
    accepts=lambda source: frozenset({"capacity", "device"}),
    matches=_matches,
    open=_open,
)
