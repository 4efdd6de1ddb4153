"""Callables that a script defines itself, as they are sent to the compiling process; no compiler is needed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANG

for name in ("jax", "cloudpickle", "flatbuffers"):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"needs {name}: pip install '.[xla]'", allow_module_level=True)

#: A script with what a pickle loses or cannot hold, and with what it keeps. Each is called with one array.
SCRIPT = '''
import dataclasses, functools, os, subprocess, sys, threading
import jax, jax.numpy as jnp, msgspec
from jax.ad_checkpoint import checkpoint_name
from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.training import Training
from stowplan.backends.xla import workload
from stowplan.hardware.targets import load_target

workload.versions = dict

@jax.custom_vjp
def own_vjp(x): return jnp.sin(x)
own_vjp.defvjp(lambda x: (jnp.sin(x), x), lambda x, slope: (7 * slope,))

@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def own_vjp_of_two(x, times): return times * x
own_vjp_of_two.defvjp(lambda x, times: (times * x, None), lambda times, _, slope: (times * slope,))

@jax.custom_jvp
def own_jvp(x): return jnp.sin(x)
own_jvp.defjvp(lambda at, slope: (own_jvp(at[0]), 7 * slope[0]))

@jax.custom_batching.custom_vmap
def own_vmap(x): return 2 * x
own_vmap.def_vmap(lambda size, batched, x: (2 * x, True))

@jax.jit
def jitted(x): return own_vjp(x)

def decorated(function):
    @functools.wraps(function)
    def wrapper(*given): return function(*given)
    return wrapper

@decorated
def plain(x): return own_jvp(x)

@functools.singledispatch
def dispatched(x): return jnp.sin(x)

def closure(times):
    @jax.custom_vjp
    def inner(x): return times * x
    inner.defvjp(lambda x: (times * x, None), lambda _, slope: (times * slope,))
    def nested(x): return inner(x)
    return nested

class Module:
    """As modules of Flax and Equinox are: an object that is called, with parts and lazy values."""
    def __init__(self): self.act, self.lock = own_vjp, threading.Lock()
    def __call__(self, x): return self.act(x) * self.scale
    def method(self, x): return self(x)
    @functools.cached_property
    def scale(self): return 2.0

@jax.tree_util.register_pytree_node_class
class Tree:
    def __init__(self, leaf): self.leaf = leaf
    def tree_flatten(self): return (self.leaf,), None
    @classmethod
    def tree_unflatten(cls, _, leaves): return cls(*leaves)
    def __call__(self, x): return x * self.leaf

@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Data:
    leaf: object

def with_trees(x):
    once = lambda carry, _: (Tree(Data(own_vjp(carry.leaf.leaf))), None)
    return jax.lax.scan(once, Tree(Data(x)), None, length=2)[0].leaf.leaf

array, key = jnp.ones(3), jax.random.key(0)

#: The first are as different as they can be.
KINDS = {
    "custom_vjp": own_vjp,
    "object": Module(),
    "pytrees within": with_trees,
    "checkpoint": jax.checkpoint(own_vjp),
    "closure": closure(3),
    "jit": jitted,
    "custom_vjp with an argument that is none": lambda x: own_vjp_of_two(x, 3),
    "custom_jvp": own_jvp,
    "custom_vmap": lambda x: jax.vmap(own_vmap)(jax.lax.stop_gradient(x)) + x,
    "jit with static arguments": functools.partial(jax.jit(lambda times, x: times * x, static_argnums=0), 3),
    "partial": functools.partial(lambda times, x: times * own_vjp(x), 3),
    "partial of jax": jax.tree_util.Partial(lambda times, x: times * own_vjp(x), 3),
    "lambda": lambda x: own_vjp(x),
    "decorated": plain,
    "single dispatch": dispatched,
    "method": Module().method,
    "pytree that is called": Tree(3.0),
    "checkpoint with a policy": jax.checkpoint(
        lambda x: jnp.sin(checkpoint_name(jnp.sin(x), "a")), policy=jax.checkpoint_policies.save_only_these_names("a")
    ),
    "vmap": jax.vmap(own_vjp),
    "gradient": jax.grad(lambda x: own_vjp(x).sum()),
    "arrays": lambda x: x * array.sum() + jax.random.normal(key, x.shape),
}

def loss_of(kind):
    # The arguments are a tree of the script's own, too.
    def loss(tree, x): return jnp.sum(KINDS[kind](tree.leaf * x) ** 2)
    return loss

given = Tree(jax.ShapeDtypeStruct((4, 8), "float32")), jax.ShapeDtypeStruct((4, 8), "float32")
child = subprocess.Popen([sys.executable, os.environ["CHILD"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
for kind in [*KINDS][: int(os.environ["MOST"])]:
    training = Training(loss_of(kind), given, 0, (1,), load_target("tpu-v5e"), 1 << 30)
    sent = training.workload(Policy("everything_again"))
    child.stdin.write(msgspec.json.encode(sent).decode() + "\\n")
    child.stdin.flush()
    print(kind, child.stdout.readline().strip())
child.stdin.close()
'''

#: The compiling process's part, with a CPU's devices in place of a TPU's: load and lower.
CHILD = """
import sys
import jax, msgspec
from stowplan.backends.xla import child
from stowplan.backends.xla.workload import Workload, shapes_of

for line in sys.stdin:
    try:
        workload = msgspec.json.decode(line, type=Workload)
        function, arguments, donated, _ = child.load(workload, jax.devices(), None)
        shapes = [jax.ShapeDtypeStruct(leaf.dims, leaf.dtype) for leaf in jax.tree.leaves(arguments)]
        traced = jax.jit(function, donate_argnums=donated).trace(*shapes)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
        print(donated, [str(leaf.shape) for leaf in jax.tree.leaves(traced.out_info)], "stablehlo" in text, flush=True)
    except Exception as error:
        print("failed:", type(error).__name__, str(error).replace(chr(10), " "), flush=True)
"""


@pytest.mark.parametrize(
    ("place", "most"),
    [("script", 6), *(pytest.param(place, None, marks=pytest.mark.slow) for place in ("script", "command", "notebook"))],
)
def test_callables_of_a_script(tmp_path: Path, place: str, most: int | None) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "child.py").write_text(CHILD)
    # A notebook's cells are compiled one by one in ``__main__``, which has no file.
    notebook = "import sys; exec(compile(sys.stdin.read(), '<cell 1>', 'exec'), vars(sys.modules['__main__']))"
    command = {"script": ["script.py"], "command": ["-c", SCRIPT], "notebook": ["-c", notebook]}[place]
    done = subprocess.run(
        [sys.executable, *command],
        input=SCRIPT if place == "notebook" else None,
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "JAX_PLATFORMS": "cpu",
            "CHILD": "child.py",
            "MOST": str(most or 99),
        },
        text=True,
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == most or len(lines) > 20
    wrong = [line for line in lines if not line.endswith("(1,) ['()', '(4, 8)'] True")]
    assert not wrong, "\n".join(wrong)
