"""What losses may have in them: keys, rules of their own, kernels, meshes, whole numbers. Gradients stay the function's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from stowplan.backends import jax as fitting

if importlib.util.find_spec("jax") is None:
    pytest.skip("needs jax: pip install '.[xla]'", allow_module_level=True)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from stowplan.backends.jax.check import GradientError, check_gradients
from stowplan.backends.jax.graph import plan
from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.training import Training
from stowplan.hardware.targets import load_target

TARGET = load_target("tpu-v5e")
ARRAY = jax.ShapeDtypeStruct((4, 8, 8), "bfloat16")
ROWS = jax.ShapeDtypeStruct((4, 8), "bfloat16")


def over_layers(layer: Callable[..., Any]) -> Callable[..., Any]:
    def loss(weights: Any, x: Any, *others: Any) -> Any:
        x = jax.lax.scan(lambda x, w: (layer(x, w, *others), None), x, weights)[0]
        return (x.astype("float32") ** 2).mean()

    return loss


def dropped(x: Any, w: Any, key: Any) -> Any:
    return x + jnp.where(jax.random.bernoulli(key, 0.8, x.shape), jax.nn.gelu(x @ w), 0)


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return jnp.clip(x, -1, 1)


clipped.defvjp(lambda x: (jnp.clip(x, -1, 1), x), lambda x, slope: (slope * jnp.tanh(x),))


def with_own_rule(x: Any, w: Any) -> Any:
    return x + clipped(jax.nn.silu(x @ w))


def squared(x: Any) -> Any:
    from jax.experimental import pallas as pl

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * x[...]

    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True)(x)


by_kernel = jax.custom_vjp(squared)
by_kernel.defvjp(lambda x: (squared(x), x), lambda x, slope: (2 * x * slope,))


def with_pallas(x: Any, w: Any) -> Any:
    return x + by_kernel(jnp.tanh(x @ w))


def twice(x: Any, w: Any) -> Any:
    """A scan in a scan, and a checkpoint that is there already."""
    inner = jax.checkpoint(lambda x, _: (jnp.sin(x @ w), None), policy=jax.checkpoint_policies.dots_saveable)
    return x + jnp.sin(jnp.sin(jax.lax.scan(inner, x, None, length=2)[0]))


def indexed(weights: Any, x: Any) -> Any:
    """Whole numbers among what it is differentiated by."""
    return over_layers(lambda x, w: x + jax.nn.silu(x @ w["w"]) * w["table"][w["at"]])(weights, x)


INDEXED = {
    "w": ARRAY,
    "table": jax.ShapeDtypeStruct((4, 3, 8), "bfloat16"),
    "at": jax.ShapeDtypeStruct((4,), "int32"),
}
KINDS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "dropout by key": (over_layers(dropped), (ARRAY, ROWS, jax.eval_shape(lambda: jax.random.key(0)))),
    "custom_vjp": (over_layers(with_own_rule), (ARRAY, ROWS)),
    "pallas": (over_layers(with_pallas), (ARRAY, ROWS)),
    "scan in scan": (over_layers(twice), (ARRAY, ROWS)),
    "float0": (indexed, (INDEXED, ROWS)),
}


def planned(training: Training, part: float) -> Policy:
    """A plan that saves a part of what is saved without one."""
    needed = sum(graph.needed_bytes for graph in training.graphs)
    return Policy("planned", plan(training.graphs, int(part * needed)).saved)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_the_function(kind: str) -> None:
    loss, arguments = KINDS[kind]
    training = Training(loss, arguments, 0, (), TARGET, 1 << 40)
    policy = planned(training, 0.5)
    assert policy.names
    assert "equal to the bit" in check_gradients(training, policy)


def test_shard_map_over_a_mesh_of_no_devices() -> None:
    mesh = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))

    def shape(dims: tuple[int, ...], *axes: Any) -> Any:
        return jax.ShapeDtypeStruct(dims, "float32", sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    arguments = shape((4, 8, 8), None, None, "model"), shape((4, 8), "data")

    def layer(x: Any, w: Any) -> Any:
        def product(x: Any, w: Any) -> Any:
            return jax.lax.all_gather(jax.nn.silu(x @ w), "model", axis=1, tiled=True)

        specs = (PartitionSpec("data"), PartitionSpec(None, "model"))
        mapped = jax.shard_map(product, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("data"), check_vma=False)
        return x + jnp.sin(jnp.sin(mapped(x, w)))

    training = Training(over_layers(layer), arguments, 0, (), TARGET, 1 << 20)
    policy = planned(training, 0.5)
    assert policy.names
    results = jax.eval_shape(training.with_policy(policy), *arguments)
    assert [leaf.shape for leaf in jax.tree.leaves(results)] == [(), (4, 8, 8)]
    assert "not compared" in check_gradients(training, policy)


def test_gradients_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(*KINDS["custom_vjp"], 0, (), TARGET, 1 << 40)
    real = training.with_policy

    def wrong(policy: Policy) -> Any:
        if policy.kind == "as_it_is":
            return real(policy)
        return lambda *given: jax.tree.map(lambda leaf: 1.1 * leaf, real(policy)(*given))

    monkeypatch.setattr(training, "with_policy", wrong)
    with pytest.raises(GradientError, match="expected at most"):
        check_gradients(training, Policy("everything_again"))


def test_policies_differ_where_roundings_are_left_out_and_nowhere_else() -> None:
    # XLA keeps float32 within a fusion where the program has bfloat16, and what is saved is rounded.
    training = Training(over_layers(lambda x, w: x + jax.nn.gelu(x @ w) @ w.T), (ARRAY, ROWS), 0, (), TARGET, 1 << 40)
    chance = np.random.default_rng(0)
    given = [jnp.asarray(chance.normal(0, 0.3, leaf.shape), leaf.dtype) for leaf in training.arguments]

    def gradients(policy: Policy, excess: bool) -> Any:
        compiled = jax.jit(training.with_policy(policy)).lower(*given).compile({"xla_allow_excess_precision": excess})
        return np.asarray(compiled(*given)[1], "float32")

    for policy in (Policy("everything_again"), planned(training, 0.5)):
        np.testing.assert_array_equal(gradients(policy, False), gradients(Policy("as_it_is"), False), err_msg=str(policy))


@pytest.mark.parametrize("names", [(), ("a",)])
def test_plans_over_own_names_are_lines_of_maxtext(names: tuple[str, ...]) -> None:
    lines = Policy("planned_own_names", names).maxtext(("a", "b"))
    assert lines == ["remat_policy: custom", f"a: {'device' if names else 'remat'}", "b: remat"]
    assert Policy("offload_names", ("b",)).maxtext(("a", "b"))[1:] == ["a: remat", "b: offload"]
    kept = "decoder_layer_input"
    assert Policy("names", ("a",)).maxtext((kept, "a"))[1:] == [
        "# decoder_layer_input is kept on the device, as MaxText cannot compute it again",
        "a: device",
    ]
    assert Policy("offload_names", (kept,)).maxtext((kept,))[1:] == ["decoder_layer_input: offload"]
    assert fitting.Policy("names", ("a",)).is_same(Policy("planned_own_names", ("a",)))
