"""TensorFlow Lite models: what of them is planned, what stays where the file has it, what is refused, and what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.backends.tflm.write import write_plan
from stowplan.cli import main
from stowplan.errors import InputError
from stowplan.frontends.tflite.flatbuffer import FlatBuffer
from stowplan.frontends.tflite.model import read_tflite
from stowplan.log import UnmodelledWarning
from tests.frontends.tflite.tflite_models import ADD, CALL_ONCE, CUSTOM, MEAN, VAR_HANDLE, save, tensor, words

CASES = Path(__file__).resolve().parents[4] / "shared" / "cases"


def chain(path: Path, code: int = ADD, offsets: list[int] | None = None, **more: Any) -> Path:
    """Five tensors in a row, of 64 bytes each; the second operator may be another."""
    operators = [(code if at == 1 else ADD, [at], [at + 1]) for at in range(4)]
    return save(path, [tensor([64]) for _ in range(5)], operators, offsets, **more)


@pytest.mark.parametrize(
    ("kind", "size"), [(0, 256), (1, 128), (6, 64), (7, 128), (9, 64), (10, 512), (11, 1024), (16, 128), (17, 64), (18, 128)]
)
def test_sizes_are_those_of_the_runtime(kind: int, size: int, tmp_path: Path) -> None:
    path = save(tmp_path / "sizes.tflite", [tensor([64]), tensor([8, 8], kind), tensor([])], [(ADD, [0], [1]), (ADD, [1], [2])])
    assert [each.size for each in read_tflite(path).problem.buffers] == [64, size, 16]


@pytest.mark.parametrize(
    ("kind", "words"),
    [(5, "type 5"), (14, "type 14"), (19, "type 19"), (20, "type 20"), (21, "type 21"), (99, "type 99"), (-3, "type -3")],
)
def test_types_without_a_size_are_refused(kind: int, words: str, tmp_path: Path) -> None:
    path = save(tmp_path / "types.tflite", [tensor([4]), tensor([4], kind)], [(ADD, [0], [1])])
    with pytest.raises(InputError, match=rf"tensors\[1\]: found shape \[4\] of {words}, expected a fixed size"):
        read_tflite(path)


def test_what_a_handle_stands_for_and_what_is_empty_is_not_planned(tmp_path: Path) -> None:
    tensors = [tensor([4]), tensor([1], 13), tensor([0, 3]), tensor([4])]
    path = save(tmp_path / "handle.tflite", tensors, [(VAR_HANDLE, [], [1]), (ADD, [0, 1], [2]), (ADD, [0, 2], [3])])
    assert read_tflite(path).planned == (0, 3)


def test_what_is_refused(tmp_path: Path) -> None:
    pair, path = [tensor([4]), tensor([4]), tensor([4])], tmp_path / "no.tflite"
    for operators, message in (
        ([(CALL_ONCE, [0], [1]), (ADD, [1], [2])], "operator 0: found subgraph -1, expected 0 to 0"),
        ([(200, [0], [1]), (ADD, [1], [2])], "operator 0: found a loop"),
        ([(ADD, [0, 1], [2])], r"tensors\[1\]: found nothing that writes what operator 0 reads"),
        ([(ADD, [0, 2], [1]), (ADD, [1], [2])], r"tensors\[2\]: found nothing that writes what operator 0 reads"),
    ):
        with pytest.raises(InputError, match=message):
            read_tflite(save(path, pair, operators))
    with pytest.raises(InputError, match=r"tensors\[1\]: found a sparse, variant or external tensor"):
        read_tflite(save(path, [tensor([4]), tensor([4], sparse=True)], [(ADD, [0], [1])]))
    with pytest.raises(InputError, match=r"tensors\[1\]: found shape \[-1, 4\]"):
        read_tflite(save(path, [tensor([4]), tensor([-1, 4])], [(ADD, [0], [1])]))
    # Weights that are sparse stand in the file.
    assert read_tflite(save(path, [tensor([4]), tensor([9], stored=True, sparse=True), tensor([4])], [(ADD, [0, 1], [2])]))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (CUSTOM, "operator 1: the custom operator 'mine' is not known: memory of its own, and bytes that its tensors share"),
        (173, "operator 1: operator code 173 is not known"),
        (MEAN, "operator 1: its kernel asks for scratch memory that is not planned"),
    ],
)
def test_what_is_said_of_operators(code: int, message: str, tmp_path: Path) -> None:
    with pytest.warns(UnmodelledWarning, match=message) as caught:
        stowplan.read(chain(tmp_path / "told.tflite", code), "arena")
    assert len(caught) == 1


def test_scratch_memory_of_a_custom_operator_is_written_by_nobody(tmp_path: Path) -> None:
    tensors = [tensor([4]), tensor([100]), tensor([4])]
    with pytest.warns(UnmodelledWarning, match="custom operator"):
        assert read_tflite(save(tmp_path / "own.tflite", tensors, [(CUSTOM, [0, 1], [2])])).planned == (0, 1, 2)


def solve(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as done:
        main(["solve", *map(str, arguments), "--target", "arena", "--time-limit", "5", "-q"])
    return int(done.value.code or 0)


def test_offsets_of_a_file_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # The second tensor at 64, the output further up; the others are the runtime's.
    path, out = chain(tmp_path / "kept.tflite", offsets=[-1, 64, -1, -1, 1000]), tmp_path / "out.tflite"
    assert solve(path, "--emit", f"tflite={out}") == 0
    said = capsys.readouterr().out
    assert "OfflineMemoryAllocation: 2 tensors stay where the file has them" in said
    assert "objective  1,064 bytes" in said
    version, subgraphs, count, *offsets = words(out)
    assert (version, subgraphs, count) == (1, 1, 5)
    assert (offsets[1], offsets[4]) == (64, 1000)
    assert min(offsets) >= 0
    for one, two in ((0, 1), (1, 2), (2, 3), (3, 4)):
        assert abs(offsets[one] - offsets[two]) >= 64
    # Asked for by name, all is planned anew, and the plan says which problem it is for.
    assert solve(path, "--set", "replace_offline_plan=yes", "--emit", f"tflite={out}") == 0
    assert "objective  128 bytes" in (said := capsys.readouterr().out)
    assert "stay" not in said
    assert words(out)[3:] in ([0, 64, 0, 64, 0], [64, 0, 64, 0, 64])


def test_offsets_that_a_custom_operator_may_know_stay_whatever_is_asked(tmp_path: Path) -> None:
    path, out = chain(tmp_path / "custom.tflite", CUSTOM, [640, 64, 96, 320, 0]), tmp_path / "out.tflite"
    with pytest.warns(UnmodelledWarning) as caught:
        model = read_tflite(path, replace_offline_plan=True)
    assert "2 tensors stay" in str(caught[1].message)
    # Tensors 1 and 2 share bytes, as what an accelerator finds in its scratch memory does: one obstacle.
    assert [(each.id, each.lower, each.upper, each.offset, each.size) for each in model.problem.buffers] == [
        ("0", 0, 2, None, 64),
        ("3", 3, 5, None, 64),
        ("4", 4, 5, None, 64),
        ("placed 0", 1, 4, 64, 96),
    ]
    assert solve(path, "--set", "replace_offline_plan=yes", "--emit", f"tflite={out}") == 0
    offsets = words(out)[3:]
    assert offsets[1:3] == [64, 96]
    assert offsets[0] + 64 <= 64 or offsets[0] >= 160
    assert max(offsets) < 320
    # Not asked for, all of the file's plan stays, and is written again as it is.
    assert solve(path, "--emit", f"tflite={out}") == 0
    assert words(out)[3:] == [640, 64, 96, 320, 0]


@pytest.mark.parametrize("plan", [[1, 1], [1, 1, 4, 0, 0, 0, 0], [1, 1, 5, 0, 0], [1, 1, 5, 0, 0, 0, 0, -2], []])
def test_malformed_plans_of_a_file(plan: list[int], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"OfflineMemoryAllocation: found .* expected one of -1 or more for each of 5"):
        read_tflite(chain(tmp_path / "bad.tflite", plan=plan))


def test_only_the_offsets_of_a_plan_change_what_is_planned(tmp_path: Path) -> None:
    plain = read_tflite(chain(tmp_path / "plain.tflite")).problem
    assert read_tflite(chain(tmp_path / "free.tflite", offsets=[-1] * 5)).problem.digest == plain.digest
    kept = _plan_of(chain(tmp_path / "kept.tflite", offsets=[0, 64, 0, 64, 0]))
    with pytest.raises(InputError, match="the plan is not valid"):
        write_plan(tmp_path / "plain.tflite", kept, tmp_path / "no.tflite")
    assert not (tmp_path / "no.tflite").exists()


def _plan_of(path: Path) -> Any:
    with pytest.warns(UnmodelledWarning):
        problem = stowplan.read(path, "arena")
    return stowplan.solve(problem, time_limit=2).plan


@pytest.mark.skipif(not CASES.is_dir(), reason="needs ../shared/cases")
def test_models_of_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vela, out = CASES / "tflite-vela" / "micro_models_person_detect_vela.tflite", tmp_path / "out.tflite"
    for more in ([], ["--set", "replace_offline_plan=yes"]):
        assert solve(vela, "--emit", f"tflite={out}", *more) == 0
        assert "'ethos-u' is not known" in capsys.readouterr().out
        found = FlatBuffer(out.read_bytes())
        names = [found.text(each, 0) for each in found.tables(found.follow(0), 6)]
        assert names == ["vela_version", "OfflineMemoryAllocation"]
        with pytest.warns(UnmodelledWarning):
            assert read_tflite(out).offsets == (0, -1, -1, 0, 0, 0)
    sizes = [each.size for each in read_tflite(CASES / "tflite-int4" / "int4.tflite").problem.buffers]
    assert sizes == [64] * len(sizes)
