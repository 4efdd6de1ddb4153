"""Where the tensors of an exported program stand, as a table for builds: a C header, JSON or CSV."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from stowplan import files
from stowplan.backends.emit import FORMATS, check_form
from stowplan.models.document import Arena, OffsetRow, OffsetTable


def offset_table(program: Any, method: str = "forward") -> OffsetTable:
    """Offsets of all planned tensors of a method, named as in its graph; control flow's own tensors are left out.

    Parameters
    ----------
    program
        Executorch's ``ExecutorchProgramManager``.
    method
        Of several methods, the one to look at.
    """
    graph_module = program.exported_program(method).graph_module
    sizes = list(graph_module.meta["non_const_buffer_sizes"])
    rows: dict[int, OffsetRow] = {}
    for node in graph_module.graph.nodes:
        specs = node.meta.get("spec")
        for at, spec in enumerate(specs if isinstance(specs, list | tuple) else [specs]):
            # A view has the bytes of its base, and no place of its own.
            if getattr(spec, "mem_offset", None) is None or not spec.mem_id or id(spec) in rows or hasattr(spec, "_base"):
                continue
            first, last = spec.lifetime
            rows[id(spec)] = OffsetRow(
                name=node.name if at == 0 else f"{node.name}_{at}",
                offset=spec.mem_offset,
                size=spec.nbytes(),
                alignment=spec.alignment,
                start=first,
                end=last + 1,
                arena=spec.mem_id,
            )
    every = tuple(rows.values())
    # The arenas are executorch's: what it asks of the runtime, with what is reserved in them. The first is for constants.
    arenas = tuple(
        Arena(name=f"arena{number}", bytes=size, alignment=max([1, *(row.alignment for row in every if row.arena == number)]))
        for number, size in enumerate(sizes)
    )
    digest = hashlib.sha256(files.encode(list(every))).hexdigest()
    return OffsetTable(kind="packing", program=method, problem_digest=digest, plan_digest=digest, arenas=arenas, rows=every)


def write_offsets(program: Any, path: str | Path, form: str = "c-header", method: str = "forward") -> None:
    """Write :func:`offset_table` to a file, whose name is what C identifiers begin with.

    Raises
    ------
    UsageError
        A format other than ``c-header``, ``json`` and ``csv``.
    """
    check_form(form)
    name = Path(path).name.partition(".")[0]
    files.write_atomic(path, FORMATS[form](offset_table(program, method), name))
