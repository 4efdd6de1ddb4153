"""What the checker refuses: mutated proofs that claim too much, other problems, and hostile files."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.house.count import count
from stowplan import files
from stowplan.certificates import checker
from stowplan.certificates.certificate import Certificate
from stowplan.certificates.checker import Verdict, check, check_parsed
from stowplan.certificates.checker.reading import MalformedError, UnprovenError, digest, parse
from stowplan.certificates.maker import certify
from stowplan.errors import InputError
from tests.certificates.cases import CASES
from tests.patience import HANG


def certified(kind: str, count: int) -> Iterator[tuple[Any, int | None, Certificate]]:
    """Problems, their optima and their certificates."""
    for seed in range(count):
        problem, best = CASES[kind](seed)
        found = certify(problem, infeasible=best is None)
        if found.is_proof:
            yield problem, best, found


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all that is neither object nor list."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(each, (*path, key))
    else:
        yield path


def mutated(stated: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One or two numbers of the proof or the claim changed, a row dropped, doubled or swapped."""
    found = copy.deepcopy(stated)
    for _ in range(rng.choice([1, 1, 2])):
        *path, last = rng.choice([each for each in leaves(found) if each[0] in ("proof", "bound")])
        at = found
        for key in path:
            at = at[key]
        value = at[last]
        if isinstance(at, list) and rng.random() < 0.2:
            at.pop(last) if rng.random() < 0.5 else at.append(value)
        elif type(value) is int:
            changes = [value + 1, value - 1, 2 * value, -value, 0, value + rng.randint(-50, 50), value * 10**6]
            at[last] = rng.choice([*changes, None, str(value), value + 0.5, True])
        else:
            at[last] = rng.choice([None, 0, 1, "start", "end", "tile", "tiles", "ports", "prices", "cut", []])
    return found


def verdict_of(rules: dict[str, Any], stated: dict[str, Any]) -> Verdict | None:
    """What the checker says of a certificate; None where it refuses it."""
    try:
        return check_parsed(rules, stated)
    except (MalformedError, UnprovenError):
        return None


@pytest.mark.parametrize("kind", CASES)
def test_no_mutant_claims_too_much(kind: str) -> None:
    rng = random.Random(0)
    tried = accepted = 0
    for problem, best, found in certified(kind, 25):
        rules, stated = json.loads(files.encode(problem)), json.loads(files.encode(found))
        for _ in range(40):
            tried += 1
            verdict = verdict_of(rules, mutated(stated, rng))
            if verdict is None:
                continue
            accepted += 1
            if verdict.bound is None:
                assert best is None, (problem, found)
            else:
                assert best is None or verdict.bound <= best, (problem, found)
    assert tried > 300
    assert accepted < tried


@pytest.mark.parametrize("kind", CASES)
def test_a_claim_raised_by_one_is_refused(kind: str) -> None:
    for problem, _, found in certified(kind, 10):
        if found.bound is None:
            continue
        raised = json.loads(files.encode(found)) | {"bound": found.bound + 1}
        with pytest.raises(UnprovenError, match="bound: it claims"):
            check(files.encode(problem), json.dumps(raised).encode())
        nothing = json.loads(files.encode(found)) | {"bound": None}
        with pytest.raises((UnprovenError, MalformedError)):
            check(files.encode(problem), json.dumps(nothing).encode())


def test_another_problem_is_refused() -> None:
    (one, _, found), (other, _, _) = [each for each in certified("packing", 9) if each[1] is not None][:2]
    found.check(one)
    with pytest.raises(UnprovenError, match="digests differ"):
        found.check(other)
    with pytest.raises(UnprovenError, match="kind: found 'packing', the problem is of 'operator_order'"):
        found.check(CASES["operator_order"](0)[0])


def test_a_problem_file_without_all_its_fields_is_told_how_to_get_them() -> None:
    """A reader fills in what a file leaves out, but the checker takes the file as it is."""
    problem, _, found = next(each for each in certified("packing", 9) if each[1] is not None)
    fields = json.loads(files.encode(problem))
    buffers = [{name: buffer[name] for name in ("id", "lower", "upper", "size")} for buffer in fields["buffers"]]
    data = json.dumps(fields | {"buffers": buffers}).encode()
    assert type(problem).decode(data) == problem
    with pytest.raises(UnprovenError, match="digests differ; if the file of the problem leaves out fields, first"):
        check(data, files.encode(found))
    assert check(files.encode(type(problem).decode(data)), files.encode(found)).bound == found.bound


def test_names_and_notes_do_not_matter() -> None:
    import msgspec

    problem, _, found = next(certified("packing", 9))
    found.check(msgspec.structs.replace(problem, name="another"))


def test_trust_is_no_proof() -> None:
    problem, _, found = next(certified("packing", 9))
    with pytest.raises(UnprovenError, match="trusted"):
        Certificate(kind="packing", problem=found.problem, bound=1, proof={"form": "trusted"}).check(problem)


HOSTILE = [
    b"",
    b"[]",
    b"null",
    b"\xff\xfe",
    b'{"format": "stowplan.certificate"',
    b"[" * 100_000,
    b'{"format": "stowplan.certificate", "format": "stowplan.certificate"}',
    b'{"bound": NaN}',
    b'{"bound": 1e999}',
    b'{"bound": ' + b"9" * 10_000 + b"}",
    b'{"format": "stowplan.certificate", "version": 1}',
    b'{"format": "stowplan.certificate", "version": 1, "kind": [], "problem": {}, "bound": 0, "proof": []}',
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_refused(data: bytes) -> None:
    problem, _, found = next(certified("packing", 9))
    with pytest.raises((MalformedError, UnprovenError)) as caught:
        check(files.encode(problem), data)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    with pytest.raises((MalformedError, UnprovenError)):
        check(data, files.encode(found))


def test_numbers_that_no_float_can_hold_are_refused() -> None:
    with pytest.raises(MalformedError, match=r"^a number: found -1e999, expected one that a float can hold$"):
        parse(b'{"seconds": -1e999}', "problem")
    assert parse(b'{"seconds": 1e99}', "problem") == {"seconds": 1e99}


def test_a_problem_that_leads_in_circles_is_refused() -> None:
    problem, _, found = next(certified("operator_order", 9))
    rules = json.loads(files.encode(problem))
    rules["tensors"][0]["alias_of"] = 0
    stated = json.loads(files.encode(found)) | {"problem": digest(rules)}
    with pytest.raises((MalformedError, UnprovenError)):
        check_parsed(rules, stated)


def test_damaged_bytes_are_refused_or_harmless() -> None:
    rng = random.Random(1)
    for kind in ("packing", "operator_order", "memory_mapping"):
        problem, best, found = next(certified(kind, 9))
        data = files.encode(found)
        for _ in range(200):
            damaged = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            try:
                verdict = check(files.encode(problem), bytes(damaged))
            except (MalformedError, UnprovenError):
                continue
            assert best is None or (verdict.bound is not None and verdict.bound <= best)


def test_the_checker_runs_by_itself(tmp_path: Path) -> None:
    problem, _, found = next(certified("packing", 9))
    (tmp_path / "problem.json").write_bytes(files.encode(problem))
    found.save(tmp_path / "proof.json")

    def run(*names: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "stowplan.certificates.checker", *(str(tmp_path / name) for name in names)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False)
        return done.returncode, done.stdout + done.stderr

    assert run("problem.json", "proof.json") == (0, f"proven by load: no plan is below {found.bound}\n")
    (tmp_path / "wrong.json").write_text(found_with(found, bound=10**9))
    code, text = run("problem.json", "wrong.json")
    assert code == 4
    assert text.startswith("not proven: bound: it claims 1000000000")
    assert run("problem.json", "problem.json")[0] == 2
    assert run("problem.json", "missing.json")[0] == 2
    assert run("problem.json")[0] == 2


def found_with(found: Certificate, **changes: Any) -> str:
    """The file of a certificate with other fields."""
    return json.dumps(json.loads(files.encode(found)) | changes)


def test_the_checker_is_short_enough_to_be_audited() -> None:
    lines = count(Path(checker.__file__).parent)
    assert sum(lines.values()) <= 1100
    assert max(lines.values()) <= 200


def test_files_of_certificates_are_read_strictly(tmp_path: Path) -> None:
    _, _, found = next(certified("packing", 9))
    found.save(tmp_path / "proof.json")
    assert Certificate.load(tmp_path / "proof.json") == found
    (tmp_path / "proof.json").write_text(found_with(found, more=1))
    with pytest.raises(InputError, match="unknown field"):
        Certificate.load(tmp_path / "proof.json")
