"""``benchmarks/llama``: the parts of the rig that need no build of llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.llama import build
from benchmarks.llama.architectures import TINY
from benchmarks.llama.cases import CASES, DENSE, Outcome, Run, grid, machine_for, plan_said, predicted, spread
from benchmarks.llama.gguf_files import TensorSpec, write_gguf
from stowplan.backends.llama.flags import command_of
from stowplan.backends.llama.lowering import problem_of
from stowplan.backends.llama.model import Context, LanguageModel, read_model
from stowplan.models.llm_placement.verify import verify

SOURCE = f"before\n{build._COMPUTE}    compute();\n}}\nmemory() {{\n{build._MEMORY}}}\n"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    path = tmp_path_factory.mktemp("models") / "dense.gguf"
    write_gguf(path, TINY[DENSE].metadata(DENSE), [*TINY[DENSE].tensors()])
    return read_model(path)


def test_the_patch_is_inserted() -> None:
    text = build.patched(SOURCE)
    assert text.index("static void stow_wait") < text.index(build._COMPUTE) < text.index("    stow_wait(cgraph);")
    assert text.index(build._MEMORY) < text.index("STOW_VMEM")


@pytest.mark.parametrize("place", [build._COMPUTE, build._MEMORY])
def test_a_changed_source_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="found 0 times"):
        build.patched(SOURCE.replace(place, ""))


def test_a_patched_source_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found the patch"):
        build.patched(build.patched(SOURCE))
    source = tmp_path / build.PATCHED
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    (tmp_path / ".git").write_text("gitdir: elsewhere")
    build.patch(tmp_path)
    build.patch(tmp_path)
    assert source.read_text() == build.patched(SOURCE)
    assert not (tmp_path / ".git").exists()


def test_random_data_have_the_size_of_a_hole(tmp_path: Path) -> None:
    tensors = [TensorSpec("vector", "F32", (3,)), TensorSpec("matrix", "Q8_0", (64, 5)), TensorSpec("router", "F32", (4, 5))]
    sizes = [write_gguf(tmp_path / f"{seed}", {"key": 1}, tensors, seed=seed) for seed in (None, 1)]
    content = (tmp_path / "1").read_bytes()
    assert [len(content)] * 2 == sizes
    # Ones, in a block of its own.
    begin = content.index(bytes.fromhex("0000803f") * 3)
    assert begin % 32 == 0
    assert len(set(content[begin + 32 :])) > 100


def test_random_data_of_other_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected F32 or Q8_0"):
        write_gguf(tmp_path / "file", {}, [TensorSpec("matrix", "Q4_K", (256, 1))], seed=1)


@pytest.mark.parametrize("name", CASES)
def test_cases_are_well_formed(name: str) -> None:
    case = CASES[name]
    request = case.request()
    assert request.prompt >= 1
    assert request.prompt + request.generate <= case.context
    assert case.depth < request.prompt + request.generate // 2 <= case.depth + 256
    assert case.about in ("equal", "subset", "unlike", "long cache", "spill")
    assert len(machine_for(case, 500.0, 10.0).devices) == len(case.devices)
    assert (case.about == "equal") == (len({*case.devices}) == 1 < len(case.devices))


def test_the_grid_fits_and_its_options_are_read_back(dense: LanguageModel) -> None:
    case = CASES["slow-device"]
    problem = problem_of(dense, machine_for(case, 500.0, 12.0), case.request(), [128])
    plans = grid(problem)
    some = spread(plans, 12)
    assert 10 <= len(some) <= 14
    assert [plan.objective for plan in some] == sorted(plan.objective for plan in some)
    for plan in some:
        assert verify(problem, plan).ok
        assert plan_said(problem, dense, command_of(problem, plan, Context(case.context, micro_batch=128))) == plan
        assert predicted(problem, plan) > 0


def test_a_row_counts_pairs_that_are_ranked_wrong() -> None:
    rates = {"fit": (5.0, 5.0), "recommended": (11.0, 10.0), "grid": (10.0, 11.0)}
    runs = [Run(kind, [], predicted, [measured]) for kind, (predicted, measured) in rates.items()]
    row = Outcome("slow-device", "plan", "", True, True, runs).row()
    assert row[2:8] == ["5.00", "10.00", "11.00", "0.909", "2.00", "1/3"]
