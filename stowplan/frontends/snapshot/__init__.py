"""Memory snapshots of PyTorch among the inputs, known by how they begin."""

from __future__ import annotations

from stowplan import files
from stowplan.errors import naming
from stowplan.frontends.formats import InputFormat, Opened, Source
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.snapshot.plain_pickle import MAX_BYTES, is_pickle, load
from stowplan.frontends.snapshot.trace import read_trace


def _open(source: Source, options: ReadOptions) -> Opened:
    from stowplan.frontends.snapshot.findings import Findings

    name = source.path.name.lower().removesuffix(".gz").rpartition(".")[0]
    with naming(source.path):
        trace = read_trace(load(files.read_bytes(source.path, MAX_BYTES)), options.device)
        findings = Findings(trace, name, options.capacity)
        return Opened(findings.problem, findings=findings)


FORMAT = InputFormat(
    what="a memory snapshot of PyTorch",
    suffixes=(".pickle",),
    accepts=lambda source: frozenset({"capacity", "device"}),
    matches=lambda source: source.data is None and is_pickle(files.head(source.path)),
    open=_open,
)
