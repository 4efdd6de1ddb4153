"""XLA itself, where it is installed, on functions of a second."""

from __future__ import annotations

import gzip
import importlib.util
import re
from pathlib import Path

import pytest

from stowplan.backends.xla import CompileError, Compiler, by_name, of_function, tune_workload
from stowplan.backends.xla.knobs import ASSIGNMENT_OPTION, CAPACITY_OPTION, DEFAULT, OVERLAP_OPTION, Knobs
from stowplan.backends.xla.score import Scorer, scored_program
from stowplan.backends.xla.store import Compiled
from stowplan.backends.xla.workload import PACKAGES
from stowplan.errors import UsageError
from stowplan.frontends.hlo import read_module, read_program
from stowplan.hardware.targets import load_target

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in PACKAGES),
    reason="needs jax and libtpu: pip install '.[xla]'",
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

def training_step(w, x):
    import jax
    loss, gradient = jax.value_and_grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
    return w - 0.1 * gradient, loss

def around(x, w):
    import jax
    from jax.sharding import PartitionSpec as P

    def local(x, w):
        y = jnp.tanh(x @ w)
        for _ in range(2):
            y = jnp.tanh(jax.lax.ppermute(y, "ring", [(at, (at + 1) % 4) for at in range(4)]) @ w)
        return x + y * jax.lax.psum(y.sum(0), "ring")

    return jax.shard_map(local, in_specs=(P("ring"), P()), out_specs=P("ring"))(x, w)

def make_sharded(mesh):
    import jax
    place = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    given = jax.ShapeDtypeStruct((1024, 512), "float32", sharding=place), jax.ShapeDtypeStruct((512, 256), "float32")
    return lambda x, w: jax.lax.with_sharding_constraint(x @ w, place), given, ()
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
        knobs = DEFAULT.moved(first=names, last=["a.b{1}", "w.1"]).with_option(CAPACITY_OPTION, "16384")
        knobs = knobs.with_option(OVERLAP_OPTION, "10")
        ordered = compiler.compile(knobs.compiler_options())
        assert (default.error, slow.error, ordered.error) == ("", "", "")
        cycles = [sum(step.cycles or 0 for step in read_program(each.module_path).steps) for each in (default, slow, ordered)]
        assert 0 < cycles[0] < cycles[1]
        assert cycles[2] > 0
        assert not compiler.compile(Knobs(preload="x.1").compiler_options()).error
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


@pytest.mark.parametrize("target", ["tpu-v4", "tpu-v5e"])
def test_a_preview_is_the_compile_up_to_its_assignment(folder: Path, tmp_path: Path, target: str) -> None:
    """Also over several devices, and where it is refused."""
    mesh = {"mesh": "data=2", "partition": "data -"} if target == "tpu-v5e" else {}
    shapes = ("f32[256,512]", "f32[512,1024]")
    workload = by_name("functions_of_mine:step", shapes, search_path=[str(folder)], **mesh)
    options = [{}, DEFAULT.moved(first=["x.1"]).compiler_options(), {"xla_nope": True}]
    with Compiler(workload, target=target, folder=tmp_path / "previews") as compiler:
        previews = compiler.previews(options)
        assert compiler.compiles == 0
    with Compiler(workload, target=target, folder=tmp_path / "compiles") as compiler:
        compiled = [compiler.compile(each) for each in options]
    for preview, whole in zip(previews[:2], compiled[:2], strict=True):
        for name in ("program_path", "assigned_path", "offsets_path"):
            assert getattr(preview, name).read_bytes() == getattr(whole, name).read_bytes()
        assert not preview.module_path.exists()
    assert "No such compile option: 'xla_nope'" in previews[2].error
    assert previews[2].error == compiled[2].error


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
    workload = by_name("functions_of_mine:make(128)", search_path=[str(folder)])
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


def text_of(compiled: Compiled) -> str:
    return gzip.decompress(compiled.module_path.read_bytes()).decode()


def test_a_sharded_training_step(folder: Path, tmp_path: Path) -> None:
    """Data-parallel over four chips, weights donated: the gradient is reduced, and the program of one device imported whole."""
    workload = by_name(
        "functions_of_mine:training_step",
        ["f32[512,512]", "f32[4096,512]"],
        mesh="data=4",
        partition="- data -> - -",
        donated=[0],
        search_path=[str(folder)],
    )
    with Compiler(workload, target="tpu-v5e", folder=tmp_path) as compiler:
        compiled = compiler.compile({})
        assert not compiled.error
        text = text_of(compiled)
        assert "num_partitions=4" in text
        assert "f32[1024,512]" in text
        assert "all-reduce" in text
        assert "input_output_alias={ {0}: (0, {}" in text
    module = read_module(compiled.program_path)
    scorer = Scorer(scored_program(module), load_target("tpu-v5e"))
    score = scorer.score(scorer.read(compiled))
    assert 0 < score.collective_cycles < score.cycles
    assert scorer.plan(compiled).dropped == ()


def test_shard_map_with_a_donated_argument(folder: Path, tmp_path: Path) -> None:
    workload = by_name(
        "functions_of_mine:around",
        ["f32[4096,1024]", "f32[1024,1024]"],
        mesh="ring=4",
        partition="ring -",
        donated=[0],
        search_path=[str(folder)],
    )
    tuning = tune_workload(workload, target="tpu-v5e", compiles=2, folder=tmp_path)
    assert [trial.error for trial in tuning.trials] == ["", ""]
    compiled = tuning.compiled(tmp_path, 0)
    assert {"collective-permute-start", "all-reduce"} <= {*re.findall(r" ([a-z-]+)\(", text_of(compiled))}
    scorer = Scorer(scored_program(read_module(compiled.program_path)), load_target("tpu-v5e"))
    assert scorer.plan(compiled).dropped == ()


def test_a_factory_gets_the_mesh(folder: Path) -> None:
    place, search = "functions_of_mine:make_sharded()", [str(folder)]
    with Compiler(by_name(place, mesh="data=2", search_path=search), target="tpu-v6e") as compiler:
        assert "num_partitions=2" in text_of(compiler.compile({}))
    crowded = by_name(place, mesh="data=16", search_path=search)
    with Compiler(crowded, target="tpu-v6e") as compiler, pytest.raises(UsageError, match="v6e:2x2: found mesh data=16 of 16"):
        compiler.start()


def test_a_sharded_function_at_hand(tmp_path: Path) -> None:
    """Its mesh has no devices of its own; the function closes over it."""
    pytest.importorskip("cloudpickle")
    import jax
    from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

    mesh = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    rows = NamedSharding(mesh, PartitionSpec("data"))
    x = jax.ShapeDtypeStruct((512, 512), "float32", sharding=rows)
    w = jax.ShapeDtypeStruct((512, 512), "float32", sharding=NamedSharding(mesh, PartitionSpec(None, "model")))
    sent = of_function(lambda x, w: jax.lax.with_sharding_constraint(x @ w, rows) @ w.T, x, w, out_shardings=rows)
    with Compiler(sent, target="tpu-v6e", folder=tmp_path) as compiler:
        compiled = compiler.compile({})
        assert not compiled.error
        assert "num_partitions=4" in text_of(compiled)
        assert "-> f32[256,512]" in text_of(compiled)
