"""Every module of the corpus: what the rest of the package relies on, and how much there is of it.

``python -m tests.frontends.hlo.test_corpus FOLDER...`` prints the counts anew that are kept in ``corpus_counts.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from stowplan.frontends.hlo import Computation, HloModule, program_from_module, read_module, read_program
from stowplan.hardware.program import Program
from tests.paths import ROOT

COUNTS = json.loads((ROOT / "tests" / "data" / "hlo" / "corpus_counts.json").read_text())


def counts(program: Program, module: HloModule) -> dict[str, object]:
    """What can be counted, and so compared from one version to the next."""
    return {
        "instructions": sum(len(computation.instructions) for computation in module.computations.values()),
        "steps": len(program.steps),
        "uses": program.use_count,
        "tensors": len(program.tensors),
        "groups": sum(bool(tensor.members) for tensor in program.tensors),
        "trips": [loop.trip_count for loop in program.loops],
        "bytes": sum(tensor.size for tensor in program.tensors),
        "moved": sum(step.weight * use.bytes for step in program.steps for use in step.uses),
        "flops": sum(step.weight * step.flops for step in program.steps),
        "notes": list(program.notes),
    }


def check_program(program: Program) -> None:
    written = [tensor.is_input for tensor in program.tensors]
    for step in program.steps:
        seen = set()
        for use in step.uses:
            assert 0 <= use.tensor < len(program.tensors), step.name
            assert 0 <= use.bytes <= program.tensors[use.tensor].size, step.name
            assert (use.tensor, use.is_output) not in seen, step.name
            seen.add((use.tensor, use.is_output))
        for use in step.uses:
            assert use.is_output or written[use.tensor], (
                f"{step.name} reads {program.tensors[use.tensor].name} before any write"
            )
        for use in step.uses:
            written[use.tensor] |= use.is_output
        assert step.weight == weight_of_loops(program, step.name), step.name
    # Every tensor is an input or written: the inputs, and what steps write, are all the storage there is.
    assert all(written)
    assert all(tensor.size > 0 for tensor in program.tensors)
    names = [tensor.name for tensor in program.tensors]
    assert len(set(names)) == len(names)
    assert len(program.step_index) == len(program.steps)
    members = [member for tensor in program.tensors for member in tensor.members]
    assert len(set(members)) == len(members)
    for number, tensor in enumerate(program.tensors):
        assert program.value_tensor[tensor.name] == number
        assert not tensor.members or tensor.members[0] == tensor.name
        assert {program.value_tensor[member] for member in tensor.members} <= {number}


def weight_of_loops(program: Program, step: str) -> int:
    weight = 1
    for loop in program.loops:
        if loop.start <= program.step_index[step] < loop.end:
            weight *= loop.trip_count
    return weight


def in_line(module: HloModule, computation: Computation) -> list[Computation]:
    found = [computation]
    for instruction in computation.instructions:
        if instruction.opcode in ("while", "call"):
            for name in instruction.called:
                found += in_line(module, module.computations[name])
    return found


def check_values(module: HloModule, program: Program) -> None:
    """Every leaf with bytes of every instruction of the schedule has a tensor of that size."""
    for computation in in_line(module, module.entry):
        for instruction in computation.instructions:
            for index, leaf in instruction.shape.leaves:
                text = f"{{{','.join(map(str, index))}}}" if index else ""
                if leaf.bytes:
                    tensor = program.tensors[program.value_tensor[instruction.name + text]]
                    assert tensor.size == leaf.bytes, instruction.name


@pytest.mark.corpus
@pytest.mark.parametrize("name", sorted(COUNTS))
def test_module(corpus: Path, name: str) -> None:
    module = read_module(corpus / f"{name}.hlo.txt.gz")
    program = program_from_module(module)
    check_program(program)
    check_values(module, program)
    assert counts(program, module) == COUNTS[name]


@pytest.mark.corpus
def test_all_modules_have_counts(corpus: Path) -> None:
    found = {
        f"{kind}/{path.name.split('.hlo')[0]}" for kind in ("tpu_v4", "cpu") for path in (corpus / kind).glob("*.hlo.txt.gz")
    }
    assert found == set(COUNTS)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "data").glob("*.hlo.txt.gz")), ids=lambda path: path.name)
def test_example(path: Path) -> None:
    program = read_program(path)
    check_program(program)
    assert program.notes == ()
    assert sum(step.flops for step in program.steps) > 10**8


def main() -> None:
    rows = []
    for folder in map(Path, sys.argv[1:]):
        for path in sorted(folder.glob("*.hlo.txt*")):
            module = read_module(path)
            name = f"{folder.name}/{path.name.split('.hlo')[0]}"
            rows.append(f" {json.dumps(name)}: {json.dumps(counts(program_from_module(module), module))}")
    print("{\n" + ",\n".join(rows) + "\n}")


if __name__ == "__main__":
    main()
