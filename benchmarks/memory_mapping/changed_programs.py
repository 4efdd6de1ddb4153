"""Slightly changed versions of programs of the corpus, as compiled as those: the later versions of ``earlier_version.py``.

    python -m benchmarks.memory_mapping.changed_programs CORPUS FOLDER [NAME ...]
    python -m benchmarks.memory_mapping.earlier_version \\
        $(python -m benchmarks.memory_mapping.changed_programs CORPUS FOLDER --pairs) --target tpu-v4 --alone

CORPUS has ``dump/workloads.py``, the JAX functions, which are changed here: a layer more, another end, another size of the
vocabulary, a term more in the loss, another rule for weights. Writes ``FOLDER/NAME.hlo.txt.gz``, the scheduled program before
XLA's memory-space assignment. Needs jax and libtpu; the two residual networks take minutes. ``--pairs`` compiles nothing: it
prints both versions of each program that is there.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.lib.places import ROOT


def _zloss(logits: Callable[..., Any]) -> Callable[..., Any]:
    """Cross entropy with the square of the normaliser beside it, as PaLM has it (arXiv 2204.02311, section 5)."""
    import jax
    import jax.numpy as jnp
    import workloads

    def loss(p: Any, x: Any, y: Any) -> Any:
        found = logits(p, x)
        return workloads.xent(found, y) + 1e-4 * jnp.square(jax.nn.logsumexp(found, -1)).mean()

    return loss


def _changed() -> dict[str, tuple[str, Callable[[], Any]]]:
    """By name: the program that it is a version of, and what makes function, arguments and donated positions."""
    import jax
    import jax.numpy as jnp
    import workloads as w

    def resnet50(p: Any, x: Any) -> Any:
        return w.resnet(p, x, w.R50, True)

    return {
        "mixer_s16_inf_b32_layer": ("mixer_s16_inf_b32", lambda: w.infer(lambda p, x: w.mixer(p, x, L=9), w.img(32))),
        "wavenet_inf_b32_tanh": (
            "wavenet_inf_b32",
            lambda: w.infer(lambda p, x: jnp.tanh(w.wavenet(p, x)), w.ids(32, 2048)),
        ),
        "vit_b16_inf_b8_softmax": ("vit_b16_inf_b8", lambda: w.infer(lambda p, x: jax.nn.softmax(w.vit(p, x)), w.img(8))),
        "rnn_train_b64_vocab": (
            "rnn_train_b64",
            lambda: w.train(lambda p, x, y: w.rnn_lm_loss(p, x, y, vocab=2560), w.ids(64, 48), w.ids(64, 48), opt="sgd"),
        ),
        "lstm_lm_train_t64_b32_zloss": (
            "lstm_lm_train_t64_b32",
            lambda: w.train(_zloss(lambda p, x: w.lstm_unrolled(p, x, 3, 512)), w.S((32, 64, 256), w.f32), w.ids(32, 64)),
        ),
        "gpt2s_train_b2_s512_zloss": (
            "gpt2s_train_b2_s512",
            lambda: w.train(_zloss(w.gpt), w.ids(2, 512), w.ids(2, 512), opt="adam"),
        ),
        "nmt_attn_train_b32_vocab": (
            "nmt_attn_train_b32",
            lambda: w.train(lambda p, *a: w.nmt_loss(p, *a, vocab=10240), *[w.ids(32, 24)] * 3, opt="adam"),
        ),
        "resnet50_train_b32_zloss": (
            "resnet50_train_b32",
            lambda: w.train(_zloss(resnet50), w.img(32), w.ids(32)),
        ),
        "resnet101_train_b16_lr": (
            "resnet101_train_b16",
            lambda: w.train(w.cls_loss(lambda p, x: w.resnet(p, x, w.R101, True)), w.img(16), w.ids(16), opt="momentum"),
        ),
    }


def make(name: str) -> Any:
    """Function, arguments and donated positions: what a compiling process imports."""
    return _changed()[name][1]()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("folder", type=Path, help="where programs are written")
    parser.add_argument("names", nargs="*", help="changed versions, instead of all nine")
    parser.add_argument("--pairs", action="store_true", help="print pairs of files, compile nothing")
    options = parser.parse_args()
    search = [str(ROOT), str(options.corpus / "dump")]
    sys.path.extend(search)
    versions = _changed()
    unknown = [name for name in options.names if name not in versions]
    if unknown:
        parser.error(f"found {unknown[0]!r}, expected some of {', '.join(versions)}")
    for name in options.names or versions:
        later = options.folder / f"{name}.hlo.txt.gz"
        if options.pairs:
            if later.exists():
                print(options.corpus / "tpu_v4" / f"{versions[name][0]}.hlo.txt.gz", later)
            continue
        if not later.exists():
            _compile(name, search, later)


def _compile(name: str, search: list[str], later: Path) -> None:
    from stowplan.backends.xla.compiler import Compiler
    from stowplan.backends.xla.knobs import DEFAULT
    from stowplan.backends.xla.workload import by_name

    job = by_name(f"benchmarks.memory_mapping.changed_programs:make({name})", search_path=search, name=name)
    with Compiler(job, compile_limit=3600) as compiler:
        compiled = compiler.compile(DEFAULT.compiler_options())
        if compiled.error:
            sys.exit(f"{name}: {compiled.error}")
        later.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(compiled.program_path, later)
    print(f"{name}: {compiled.record.processor_seconds:.0f} processor s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
