"""Losses under policies on a CPU, and the search with a compiler that takes no time; one preview of the real one."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stowplan.backends import jax as fitting
from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.xla.child import load
from stowplan.backends.xla.process import CompileError
from stowplan.backends.xla.workload import by_name
from stowplan.deadline import Deadline
from stowplan.errors import MissingDependencyError, TimeLimitError, UsageError
from stowplan.hardware.targets import load_target
from tests.patience import HANG

if importlib.util.find_spec("jax") is None:
    pytest.skip("needs jax: pip install '.[xla]'", allow_module_level=True)

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from stowplan.backends.jax import entry
from stowplan.backends.jax.graph import plan, recomputed
from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.previews import Previews
from stowplan.backends.jax.program import Loss, repeated
from stowplan.backends.jax.training import Training
from stowplan.backends.xla.store import Record

ROOFLINE = load_target("tpu-v5e").roofline
MIB = 1 << 20


@jax.custom_vjp
def doubled(x: Any) -> Any:
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, slope: (2 * slope,))


def layer(x: Any, p: Any) -> Any:
    inside = jax.nn.relu(jax.nn.silu(checkpoint_name(x @ p["a"], "inside")))
    kept = jax.random.bernoulli(jax.random.key(3), 0.8, inside.shape)
    return x + doubled(jnp.where(kept, inside, 0) @ p["b"]).astype(x.dtype)


def scanned(p: Any, x: Any) -> Any:
    return (jax.lax.scan(lambda x, p: (layer(x, p), None), x, p)[0] ** 2).mean()


def unrolled(p: Any, x: Any) -> Any:
    for number in range(p["a"].shape[0]):
        x = layer(x, {name: value[number] for name, value in p.items()})
    return (x**2).mean()


def nested(p: Any, x: Any) -> Any:
    """A scan in a scan, with a checkpoint and a whole number along the way."""

    def outer(carry: Any, p: Any) -> Any:
        x, count = carry
        x, _ = jax.lax.scan(lambda x, _: (jnp.sin(x @ p["a"]) @ p["b"], None), x, None, length=2)
        return (jax.checkpoint(layer)(x, p), count + 1), count

    (x, count), _ = jax.lax.scan(outer, (x, 0), p)
    return (x**2).mean() + 0 * count


LOSSES = (scanned, unrolled, nested)


def arguments(dtype: str = "float32", width: int = 16) -> Any:
    chance = np.random.default_rng(0)
    p = {name: jnp.asarray(chance.normal(0, 0.3, (3, *dims)), dtype) for name, dims in (("a", (8, width)), ("b", (width, 8)))}
    return p, jnp.asarray(chance.normal(0, 1, (4, 8)), dtype)


def policies(loss: Callable[..., Any]) -> list[Policy]:
    graphs = Loss(loss, arguments()).graphs(ROOFLINE)
    needed = sum(graph.needed_bytes for graph in graphs)
    plans = [plan(graphs, int(part * needed)) for part in (0.1, 0.3, 0.6, 1.0)]
    planned = [Policy("planned", each.saved) for each in plans if each.saved]
    assert planned
    return [Policy("everything_again"), Policy("dots"), Policy("names", ("inside",)), *planned]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_are_equal_to_the_bit_operator_by_operator(loss: Callable[..., Any], dtype: str) -> None:
    # Compiled, what is fused is rounded in other places, with jax's own policies as well.
    given = arguments(dtype)
    with jax.disable_jit():
        expected = jax.value_and_grad(loss)(*given)
        for policy in policies(loss):
            found = jax.value_and_grad(fitting.with_policy(loss, policy))(*given)
            for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_array_equal(np.asarray(one, "float32"), np.asarray(other, "float32"), err_msg=str(policy))


@pytest.mark.parametrize("loss", LOSSES)
def test_compiled_gradients_are_equal_but_for_rounding(loss: Callable[..., Any]) -> None:
    given = arguments()
    expected = jax.jit(jax.value_and_grad(loss))(*given)
    for policy in policies(loss)[::2]:
        found = jax.jit(jax.value_and_grad(fitting.with_policy(loss, policy)))(*given)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_saved_bytes_are_those_that_jax_saves() -> None:
    from jax._src.ad_checkpoint import saved_residuals

    loss = Loss(scanned, arguments())
    (part,), (graph,) = loss.parts, loss.graphs(ROOFLINE)
    for budget in (200, 600, 2000):
        planned = plan([graph], budget * part.times)
        policy = Policy("planned", planned.saved)

        def once(*inputs: Any, policy: Policy = policy) -> Any:
            return part.once(policy)(*inputs)[0]

        kept = [aval for aval, source in saved_residuals(once, *part.shapes) if "from the argument" not in source]
        assert part.times * sum(aval.size * aval.dtype.itemsize for aval in kept) == planned.bytes


def test_parts() -> None:
    assert [part.name for part in Loss(scanned, arguments()).parts] == ["scan0"]
    parts = Loss(unrolled, arguments()).parts
    assert [part.name for part in parts] == ["block"] * 3
    assert len(Loss(unrolled, arguments()).graphs(ROOFLINE)) == 1
    assert repeated(list("xabcabcabcy")) == (1, 3, 3)
    assert repeated(list("abc")) == (0, 3, 1)
    assert repeated([])[1] == 0


class Compiler:
    """A compiler whose peaks are what is saved, something more, and something that it makes up."""

    deadline = Deadline()

    def __init__(self, *_: Any):
        self.previews_made = self.compiles = self.resident_bytes = 0
        self.processor_seconds = 0.0
        self.asked: list[Policy] = []
        self.beside: Callable[[Training], int] = lambda training: 64 * MIB

    def within(self, run: Callable[[], Any]) -> Any:
        return run()

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def stored(self, training: Training, policy: Policy) -> None:
        pass

    def make(self, training: Training, policy: Policy) -> Record:
        self.previews_made += 1
        self.asked.append(policy)
        graphs = training.graphs
        names = {name for graph in graphs for name in graph.named(policy.kind)} | {*policy.names}
        size = recomputed(graphs, names).bytes if policy.kind != "as_it_is" else sum(graph.needed_bytes for graph in graphs)
        peak = self.beside(training) + int(1.1 * size)
        return Record(options={}, versions={}, topology="", workload="", processor_seconds=0, seconds=0, hbm_bytes=peak)

    def compiled(self, training: Training, policy: Policy) -> tuple[int, int]:
        self.compiles += 1
        return 1000 - self.compiles, 0


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(entry, "Previews", lambda *_: made)
    monkeypatch.setattr(entry, "versions", dict)
    return made


@pytest.mark.parametrize("hbm", [65, 67, 69, 72, 200])
def test_fits(compiler: Compiler, hbm: int, tmp_path: Path) -> None:
    fitted = fitting.fit(scanned, arguments(width=1 << 16), f"{hbm} MiB", compiles=0)
    report = fitted.report
    assert 0 < report.chosen.hbm_bytes <= hbm * MIB
    assert compiler.previews_made <= 6
    within = [each for each in report.candidates if each.hbm_bytes <= hbm * MIB]
    assert report.chosen.recomputed_seconds == min(each.recomputed_seconds for each in within)
    assert report.chosen.policy.kind in report.summary()
    assert report.chosen.policy.text in fitted.policy
    report.save(tmp_path / "report.json")
    assert fitting.FitReport.load(tmp_path / "report.json") == report
    assert fitted.function(*arguments()) == pytest.approx(scanned(*arguments()))


def test_plans_are_predicted_by_the_nearest_one_seen(compiler: Compiler) -> None:
    compiler.beside = lambda training: (64 if compiler.previews_made == 1 else 54) * MIB
    candidates = fitting.fit(scanned, arguments(width=1 << 16), "67 MiB", compiles=0).report.candidates
    seen: list[Any] = []
    for candidate in candidates[1:]:
        if candidate.policy.is_planned:
            beside = (0.85 * candidates[0].hbm_bytes, *(plan.hbm_bytes - plan.saved_bytes for plan in seen))
            place = min(range(len(seen)), key=lambda place: abs(seen[place].saved_bytes - candidate.saved_bytes), default=-1)
            assert candidate.predicted_bytes == pytest.approx(candidate.saved_bytes + beside[place + 1], abs=1)
            seen.append(candidate)
    assert len(seen) > 1


def test_the_fewest_cycles_are_taken(compiler: Compiler) -> None:
    report = fitting.fit(scanned, arguments(width=1 << 16), "72 MiB", compiles=2).report
    assert compiler.compiles == 2
    assert report.chosen.cycles == 998


def test_a_limit_that_cannot_be_met_is_an_error_with_the_least_peak(compiler: Compiler) -> None:
    with pytest.raises(MemoryLimitError, match=r"the least of \d has 64 MiB") as error:
        fitting.fit(scanned, arguments(width=1 << 16), "50 MiB")
    assert error.value.least == 64 * MIB


def test_offloads_have_the_hosts_link_in_their_cycles(compiler: Compiler) -> None:
    report = fitting.fit(scanned, arguments(width=1 << 16), "72 MiB", previews=12, compiles=12).report
    sent = [candidate for candidate in report.candidates if candidate.policy.kind == "offload_names"]
    assert sent[0].host_seconds == 2 * sent[0].host_bytes / 16e9
    assert sent[0].cycles > sent[0].host_seconds * 1.5e9
    assert "to the host and back, 16 GB/s" in " ".join(report.notes)
    assert not report.chosen.policy.is_offloaded


def test_plans_over_own_names(compiler: Compiler) -> None:
    fitted = fitting.fit(scanned, arguments(width=1 << 16), "70 MiB", compiles=0, own_names=True)
    names = {name for candidate in fitted.report.candidates for name in candidate.policy.names}
    assert names == {"inside"}
    assert "# MaxText: remat_policy: custom\n# MaxText: inside: device" in fitted.policy


@pytest.mark.parametrize(("multiple", "size"), [(1, 291), (16, 288)])
def test_the_largest_size_that_fits(compiler: Compiler, multiple: int, size: int) -> None:
    asked: list[int] = []

    def make(count: int) -> Any:
        asked.append(count)
        return scanned, (*arguments(width=1 << 12)[:1], jax.ShapeDtypeStruct((count, 8), "float32"))

    compiler.beside = lambda training: training.arguments[1].shape[0] << 20
    found = fitting.fit_largest(make, "291 MiB", start=16, multiple=multiple, compiles=0)
    assert found.size == size
    assert found.fitted.report.chosen.hbm_bytes <= 291 * MIB
    assert len(set(asked)) <= 5
    with pytest.raises(MemoryLimitError, match=f"found no size within 1 MiB; that of {multiple} has"):
        fitting.fit_largest(make, "1000 kB", multiple=multiple)


@pytest.mark.parametrize("most", [3, 6, 7, 8])
def test_the_largest_size_in_the_time(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    compiler.deadline, made, preview = Deadline(), dict[Any, Record](), compiler.make
    compiler.beside = lambda training: training.arguments[1].shape[0] << 20

    def of(training: Training, policy: Policy) -> Record:
        if len(made) == most:
            compiler.deadline.cancelled.set()
            raise TimeLimitError("the time was over")
        return made.setdefault((training.identity, policy), preview(training, policy))

    monkeypatch.setattr(compiler, "make", of)
    monkeypatch.setattr(compiler, "stored", lambda training, policy: made.get((training.identity, policy)))

    def make(count: int) -> Any:
        return scanned, (*arguments(width=1 << 12)[:1], jax.ShapeDtypeStruct((count, 8), "float32"))

    found = fitting.fit_largest(make, "291 MiB", start=16, compiles=0)
    assert found.size == (16 if most < 6 else 64 if most == 6 else found.size)
    assert found.size <= 291
    assert 0 < found.fitted.report.chosen.hbm_bytes <= 291 * MIB
    assert found.fitted.report.stop_reason == "cancelled"
    compiler.deadline, most = Deadline(), 0
    made.clear()
    with pytest.raises(TimeLimitError):
        fitting.fit_largest(make, "291 MiB", start=16, compiles=0)


def test_gradients_are_not_compared_when_the_time_is_over(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def over(*_: Any) -> str:
        raise TimeLimitError("the time was over")

    monkeypatch.setattr(entry, "check_gradients", over)
    report = fitting.fit(scanned, arguments(width=1 << 16), "72 MiB", compiles=0, check=True).report
    assert report.notes[-1] == "gradients were not compared: the time was over"


def test_what_is_traced_too_slowly_is_left_behind(tmp_path: Path) -> None:
    # The mesh that is set around the call is there within the time as well.
    mesh = jax.sharding.AbstractMesh((2,), ("data",))
    previews = Previews.__new__(Previews)
    ended = threading.Event()
    for limit in (None, 60.0):
        previews.deadline = Deadline(limit)
        with jax.sharding.use_abstract_mesh(mesh):
            assert previews.within(jax.sharding.get_abstract_mesh) == mesh
    previews.deadline = Deadline(0.01)
    with pytest.raises(TimeLimitError, match="give it more"):
        previews.within(lambda: ended.wait(HANG))
    ended.set()


def test_a_compile_that_dies_is_an_error_or_a_note(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> Any:
        raise CompileError("the compiling process ended")

    monkeypatch.setattr(compiler, "compiled", dies)
    report = fitting.fit(scanned, arguments(width=1 << 16), "72 MiB").report
    assert not report.chosen.cycles
    assert any("the compiling process ended" in note for note in report.notes)
    monkeypatch.setattr(compiler, "make", dies)
    with pytest.raises(CompileError, match="the compiling process ended"):
        fitting.fit(scanned, arguments(width=1 << 16), "72 MiB")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowplan.backends.fallback.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"stowplan\[xla\]|'xla'|\.\[xla\]"):
        fitting.fit(scanned, arguments(), "1 GiB")


def test_a_step_with_a_marked_loss(compiler: Compiler) -> None:
    marked = fitting.marked(scanned)

    def step(p: Any, x: Any) -> Any:
        loss, slope = jax.value_and_grad(marked)(p, x)
        return jax.tree.map(lambda old, new: old - 0.1 * new, p, slope), loss

    expected = jax.tree.leaves(step(*arguments()))
    fitted = fitting.fit(step, arguments(width=1 << 16), "67 MiB", compiles=0)
    found = jax.tree.leaves(jax.jit(fitted.function)(*arguments()))
    assert "remat" in str(jax.make_jaxpr(fitted.function)(*arguments()))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_what_is_printed_is_a_function_to_tune(compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``tune-xla`` imports a module with the printed lines, and finds the function with its policy."""
    (tmp_path / "to_tune.py").write_text("import jax\nfrom tests.backends.jax.test_fit import arguments, scanned\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    fitted = fitting.fit(scanned, arguments(width=1 << 16), "67 MiB", compiles=0)
    with (tmp_path / "to_tune.py").open("a") as module:
        module.write(fitted.policy)
    function, given, _, _ = load(by_name("to_tune:scanned", arguments="to_tune:arguments"), None, None)
    assert function.policy == fitted.report.chosen.policy
    assert function(*given) == pytest.approx(fitted.function(*given))


@pytest.mark.parametrize(
    ("function", "hbm", "chip", "says"),
    [
        (scanned, "1 kB", "v5e", "more than the arguments alone"),
        (scanned, "much", "v5e", "a limit of"),
        (scanned, "1 GiB", "v9", "tpu-v9"),
        (scanned, "1 GiB", "v4i", "expected one that XLA compiles for"),
        (lambda p, x: x, "1 GiB", "v5e", "without a backward pass, which returns float32"),
        (lambda p, x: x @ x, "1 GiB", "v5e", "cannot trace the function"),
    ],
)
def test_bad_input(compiler: Compiler, function: Any, hbm: str, chip: str, says: str) -> None:
    with pytest.raises(Exception, match=says) as error:
        fitting.fit(function, arguments(), hbm, chip)
    assert error.value.exit_code == 2  # type: ignore[attr-defined]
    assert "\n" not in str(error.value)
    assert not compiler.previews_made


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_modules_of_flax(compiler: Compiler, kind: str) -> None:
    pytest.importorskip("flax", reason="needs flax")
    from examples import fit_flax

    loss, given, _ = getattr(fit_flax, f"make_{kind}")()
    report = fitting.fit(loss, given, "100 MiB", own_names=True, compiles=0).report
    assert set(report.own_names) == {"query_proj", "key_proj", "value_proj", "out_proj", "mlpwi", "mlpwo"}
    assert 0 < report.chosen.hbm_bytes <= 100 * MIB


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install '.[xla]'")
def test_a_preview_of_the_real_compiler(tmp_path: Path) -> None:
    given = arguments(width=256)
    first = fitting.fit(scanned, given, "1 GiB", folder=tmp_path, previews=1, compile_limit=HANG)
    assert first.report.previews == 1
    assert 0 < first.report.chosen.hbm_bytes < MIB
    assert fitting.fit(scanned, given, "1 GiB", folder=tmp_path, previews=1).report.previews == 0
    with pytest.raises(UsageError, match="without a backward pass"):
        fitting.fit(lambda p, x: p, given, "1 GiB")
