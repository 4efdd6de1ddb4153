"""Learning the prediction from latency tables of programs. Needs scikit-learn (extra ``xla``); predicting does not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError, MissingDependencyError
from stowplan.hardware.costs.signatures.predictor import Known, Predictor, StepFacts, Trees, features
from stowplan.hardware.costs.signatures.table import LatencyTable, StepSignature

Array = NDArray[np.float64]

#: Each signature's rows are divided this often at random into known ones and those to predict.
_DRAWS = 6
#: A sample weighs the cycles of its step, all of the program's runs, to this power.
_WEIGHT_POWER = 0.25
#: Trees that predict the cycles, and the typical error.
MIDDLE_TREES, SPREAD_TREES = 200, 80
#: What a sample of another chip counts for.
_OTHER_CHIP = 0.3
#: Share of cases that an interval is to hold.
COVERAGE = 0.9
#: Typical errors below this count as this: a relative error of one in a thousand.
_LEAST_ERROR = 1e-3


@dataclass(frozen=True)
class Samples:
    """Patterns to predict, with what is known; S samples of some programs."""

    modules: tuple[str, ...]
    module: NDArray[np.int64]
    """Shape [S]: number of the program."""
    signature: NDArray[np.str_]
    """Shape [S]."""
    matrix: Array
    """Shape [S, features]."""
    target: Array
    """Shape [S]: logarithm of the cycles, less that of the nearest known pattern."""
    weight: Array
    """Shape [S]."""

    def only(self, keep: NDArray[np.bool_]) -> Samples:
        """Some of the samples."""
        return Samples(
            self.modules, self.module[keep], self.signature[keep], self.matrix[keep], self.target[keep], self.weight[keep]
        )


def with_other_chips(own: Samples, others: Iterable[Samples]) -> Samples:
    """Samples of a chip, and those of others, which count for less; a program of several chips is one, left out together."""
    found = [own, *(replace(each, weight=_OTHER_CHIP * each.weight) for each in others)]
    modules = tuple(dict.fromkeys(name for each in found for name in each.modules))
    numbers = [np.array([modules.index(name) for name in each.modules])[each.module] for each in found]
    columns = [[getattr(each, name) for each in found] for name in ("signature", "matrix", "target", "weight")]
    return Samples(modules, *map(np.concatenate, (numbers, *columns)))


def collect(programs: Iterable[tuple[str, Mapping[str, StepSignature], LatencyTable]], *, seed: int = 0) -> Samples:
    """Samples of programs, each with its name, its steps' signatures and a latency table of its own compiles.

    What comes under one name again is another text of the same program: both are left out together.

    Raises
    ------
    InputError
        No signature has two patterns.
    """
    random = np.random.default_rng(seed)
    modules: list[str] = []
    parts: list[tuple[int, str, Array, Array, Array]] = []
    for name, signatures, table in programs:
        modules += [] if name in modules else [name]
        number = modules.index(name)
        runs: dict[str, int] = {}
        steps: dict[str, StepSignature] = {}
        for step in signatures.values():
            steps.setdefault(step.signature, step)
            runs[step.signature] = runs.get(step.signature, 0) + step.weight
        for signature, step in sorted(steps.items()):
            known = Known.of(table.rows(signature), len(step.leaves))
            if len(known.patterns) > 1:
                weight = (runs[signature] * np.exp(known.log_cycles.mean())) ** _WEIGHT_POWER
                parts += [(number, signature, *each) for each in _draws(StepFacts(step), known, weight, random)]
    if not parts:
        raise InputError("found no instruction with two patterns, expected some: a prediction is learned from several compiles")
    counts = [len(target) for _, _, _, target, _ in parts]
    return Samples(
        modules=tuple(modules),
        module=np.repeat([number for number, *_ in parts], counts),
        signature=np.repeat(np.array([signature for _, signature, *_ in parts]), counts),
        matrix=np.concatenate([matrix for _, _, matrix, _, _ in parts]),
        target=np.concatenate([target for *_, target, _ in parts]),
        weight=np.concatenate([weight for *_, weight in parts]),
    )


def _draws(facts: StepFacts, known: Known, weight: float, random: np.random.Generator) -> Iterable[tuple[Array, Array, Array]]:
    """Features, targets and weights: some rows known, the others to predict. All slow is mostly known: it costs one compile."""
    count = len(known.patterns)
    for draw in range(_DRAWS if count > 2 else 2):
        keep = random.random(count) < random.choice([0.0, 0.15, 0.3, 0.6, 0.85])
        if known.patterns[0] == 0 and (count > 2 or draw == 0):
            keep[0] = random.random() < 0.9 or count == 2
        if not keep.any():
            keep[random.integers(count)] = True
        if keep.all():
            keep[random.integers(count)] = False
        matrix, anchor = features(facts, known.without(np.flatnonzero(~keep)), known.bits[~keep])
        target = known.log_cycles[~keep] - anchor
        yield matrix, target, np.full(len(target), weight / len(target) ** 0.5)


@dataclass(frozen=True)
class HeldOut:
    """A predictor, and the programs that it has learned nothing of."""

    modules: tuple[str, ...]
    predictor: Predictor


def fit(samples: Samples, *, folds: int = 8, seed: int = 0) -> Predictor:
    """Learn a prediction from all samples; what it errs by comes from programs left out in turn, as in :func:`held_out`.

    Raises
    ------
    MissingDependencyError
        scikit-learn is not installed.
    """
    logs, scaled, _ = _errors(samples, folds, seed)
    width = _weighted_quantile(scaled, samples.weight, COVERAGE)
    return Predictor(_middle(samples, seed), _trees(_spread(samples, logs, seed)), width)


def held_out(samples: Samples, *, folds: int, seed: int = 0) -> list[HeldOut]:
    """Predictors for parts of the programs, each from the others; nor do they learn of instructions that a part has, too.

    Parameters
    ----------
    folds
        Parts; as many as programs leave out one at a time.
    """
    _, scaled, parts = _errors(samples, folds, seed)
    found = []
    for hidden, middle, spread in parts:
        width = _weighted_quantile(scaled[~hidden], samples.weight[~hidden], COVERAGE)
        names = tuple(samples.modules[number] for number in np.unique(samples.module[hidden]))
        found.append(HeldOut(names, Predictor(middle, spread, width)))
    return found


_Part = tuple[NDArray[np.bool_], Trees, Trees]


def _errors(samples: Samples, folds: int, seed: int) -> tuple[Array, Array, list[_Part]]:
    """Logarithm of each sample's error, errors over typical ones, and for each part what was learned from the others."""
    modules = np.unique(samples.module)
    if len(modules) < 2:
        raise InputError(f"found {len(modules)} program with instructions to learn from, expected two at least")
    hidden_parts = [np.isin(samples.module, modules[fold::folds]) for fold in range(min(folds, len(modules)))]
    errors = np.empty_like(samples.target)
    middles = []
    for hidden in hidden_parts:
        middles.append(_middle(samples.only(_apart(samples, hidden)), seed))
        errors[hidden] = np.abs(samples.target[hidden] - middles[-1].predict(samples.matrix[hidden]))
    logs = np.log(np.maximum(errors, _LEAST_ERROR))
    scaled = np.empty_like(errors)
    parts: list[_Part] = []
    for hidden, middle in zip(hidden_parts, middles, strict=True):
        seen = _apart(samples, hidden)
        spread = _trees(_spread(samples.only(seen), logs[seen], seed))
        scaled[hidden] = errors[hidden] / np.exp(spread.predict(samples.matrix[hidden]))
        parts.append((hidden, middle, spread))
    return logs, scaled, parts


def _apart(samples: Samples, hidden: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return ~hidden & ~np.isin(samples.signature, np.unique(samples.signature[hidden]))


def _weighted_quantile(values: Array, weight: Array, share: float) -> float:
    order = np.argsort(values)
    upto = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(upto, share * upto[-1]).clip(0, len(values) - 1)])


def _middle(samples: Samples, seed: int) -> Trees:
    # Squares: absolute errors gave the same median, and a mean a quarter larger.
    return _trees(
        _regressor(seed, max_iter=MIDDLE_TREES, learning_rate=0.1).fit(samples.matrix, samples.target, samples.weight)
    )


def _spread(samples: Samples, logs: Array, seed: int) -> Any:
    return _regressor(seed, max_iter=SPREAD_TREES, learning_rate=0.08).fit(samples.matrix, logs, samples.weight)


def _regressor(seed: int, **options: Any) -> Any:
    try:
        from sklearn.ensemble import HistGradientBoostingRegressor
    except ImportError as error:
        raise MissingDependencyError("learning cycles needs scikit-learn: pip install '.[xla]'") from error
    return HistGradientBoostingRegressor(
        max_leaf_nodes=24, min_samples_leaf=15, l2_regularization=1.0, early_stopping=False, random_state=seed, **options
    )


def _trees(model: Any) -> Trees:
    """The trees of a fitted regressor as plain arrays; evaluation and :meth:`Trees.predict` agree."""
    roots, parts = [], []
    size = 0
    for stage in model._predictors:
        nodes = stage[0].nodes
        roots.append(size)
        parts.append((nodes, size))
        size += len(nodes)

    def joined(name: str, dtype: type, shift: bool = False) -> NDArray[Any]:
        return np.concatenate([nodes[name].astype(dtype) + (at if shift else 0) for nodes, at in parts]).astype(dtype)

    leaf = joined("is_leaf", np.bool_)
    return Trees(
        start=float(np.ravel(model._baseline_prediction)[0]),
        roots=np.array(roots, np.int32),
        feature=np.where(leaf, -1, joined("feature_idx", np.int16)).astype(np.int16),
        threshold=np.where(leaf, 0, joined("num_threshold", np.float64)),
        left=np.where(leaf, 0, joined("left", np.int32, shift=True)).astype(np.int32),
        right=np.where(leaf, 0, joined("right", np.int32, shift=True)).astype(np.int32),
        value=np.where(leaf, joined("value", np.float32), 0).astype(np.float32),
    )
