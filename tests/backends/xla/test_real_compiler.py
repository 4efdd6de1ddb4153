"""XLA itself, where it is installed, on functions of a second."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from stowplan.backends.xla import CompileError, Compiler, by_name, tune_workload
from stowplan.backends.xla.steer import ASSIGNMENT_OPTION, CAPACITY_OPTION, DEFAULT, OVERLAP_OPTION, Prefetch, Steer
from stowplan.backends.xla.workload import PACKAGES
from stowplan.frontends.hlo import read_program

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in PACKAGES),
    reason="needs jax and libtpu: pip install 'stowplan[xla]'",
)

MODULE = """
import jax.numpy as jnp

def step(x, w):
    return jnp.tanh(x @ w).sum(axis=0)

def wrong(x):
    return x.reshape(3, 7)

def large(x):
    return x @ x.T

def make(width):
    from jax import ShapeDtypeStruct
    return step, (ShapeDtypeStruct((8, int(width)), "float32"), ShapeDtypeStruct((int(width), 128), "float32")), 0

arguments = (jnp.zeros((256, 512)), jnp.zeros((512, 1024)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("functions")
    (folder / "functions_of_mine.py").write_text(MODULE)
    return folder


def test_options_do_what_they_say(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process, many compiles: the default, everything in slow memory, orders, and options that XLA refuses."""
    for name in ("LIBTPU_INIT_ARGS", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    shapes = ("f32[256,512]", "f32[512,1024]")
    workload = by_name("functions_of_mine:step", shapes, search_path=[str(folder)])
    with Compiler(workload, folder=tmp_path) as compiler:
        default = compiler.compile({})
        slow = compiler.compile({ASSIGNMENT_OPTION: False})
        names = [step.name for step in read_program(default.program_path).steps]
        steer = DEFAULT.moved(first=names, last=["a.b{1}", "w.1"]).with_option(CAPACITY_OPTION, "16384")
        steer = steer.with_option(OVERLAP_OPTION, "10")
        ordered = compiler.compile(steer.compiler_options())
        assert (default.error, slow.error, ordered.error) == ("", "", "")
        cycles = [sum(step.cycles or 0 for step in read_program(each.module_path).steps) for each in (default, slow, ordered)]
        assert 0 < cycles[0] < cycles[1]
        assert cycles[2] > 0
        everything = Steer(preload="x.1", prefetches=frozenset([Prefetch(names[-1], 1, "x.1")])).compiler_options()
        assert not compiler.compile(everything).error
        assert "No such compile option: 'xla_nope'" in compiler.compile({"xla_nope": True}).error
        assert OVERLAP_OPTION in compiler.compile({OVERLAP_OPTION: "much"}).error
        assert "has no field named" in compiler.compile({"xla_tpu_msa_sort_order_overrides": "nonsense{}"}).error
        # It goes on after a refusal, and reads booleans from text.
        assert not compiler.compile({ASSIGNMENT_OPTION: "false"}).error
        assert compiler.compiles == 8
    tuning = tune_workload(workload, compiles=2, folder=tmp_path)
    assert (tuning.compiles_run, [trial.cycles for trial in tuning.trials]) == (0, cycles[:2])
    # Said in another way it is the same program.
    named = by_name("functions_of_mine:step", arguments="functions_of_mine:arguments", search_path=[str(folder)])
    with Compiler(named, folder=tmp_path) as compiler:
        assert compiler.find({}) is not None


def test_what_goes_wrong_is_said_in_xlas_words(folder: Path) -> None:
    for reference, shapes, message in (
        ("functions_of_mine:wrong", ["f32[4]"], r"functions_of_mine.py:8: TypeError: cannot reshape array of shape \(4,\)"),
        ("functions_of_mine:none", [], "cannot import the function: AttributeError: module 'functions_of_mine' has no"),
        ("no_such_module:none", [], "none: cannot import the function: ModuleNotFoundError: No module named 'no_such_module'"),
    ):
        found = by_name(reference, shapes, search_path=[str(folder)])
        with Compiler(found) as compiler, pytest.raises(CompileError, match=message):
            compiler.start()


def test_a_program_that_does_not_fit(folder: Path) -> None:
    workload = by_name("functions_of_mine:large", ["f32[200000,8]"], search_path=[str(folder)])
    with pytest.raises(CompileError, match=r"large: .*Ran out of memory on HBM"):
        tune_workload(workload, compiles=2)


def test_a_factory(folder: Path) -> None:
    workload = by_name("functions_of_mine:make", factory=True, factory_arguments=["128"], search_path=[str(folder)])
    tuning = tune_workload(workload, compiles=1)
    assert tuning.default.cycles > 0


def test_a_function_at_hand() -> None:
    pytest.importorskip("cloudpickle")
    import jax.numpy as jnp
    import numpy as np

    from stowplan.backends.xla import tune

    scale = 3.0
    tuning = tune(lambda x: jnp.tanh(x["a"] @ x["a"]) * scale, {"a": np.zeros((128, 128), np.float32)}, compiles=1)
    assert (tuning.name, tuning.gain) == ("lambda", 0)
