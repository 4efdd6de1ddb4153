"""Maps of a run in two dimensions (UMAP over Jaccard distances of one-hot maps), after figure 5 of Khadka et al., ICLR 2021."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.spatial.distance import cdist, pdist

from benchmarks.egrl.runs import Run, problem_of
from benchmarks.egrl.tables import Place, Records
from benchmarks.lib.runs import arrays_of
from benchmarks.lib.tables import table
from stowplan.models.tier_placement.plan import Plan

#: Maps of each sort and network in a picture, over all seeds.
MOST = 400

#: Of UMAP: neighbours that its picture is true to.
NEIGHBOURS, LEAST_DISTANCE = 15, 0.1


@dataclass(frozen=True)
class Maps:
    """Maps of one place ``[K, N, 2]``, and of what sort each is: ``near``, ``best``, ``compiler``, ``optimum``."""

    place: Place
    tiers: np.ndarray
    kinds: tuple[str, ...]

    def of(self, kind: str) -> np.ndarray:
        """Maps of a sort."""
        return self.tiers[[each == kind for each in self.kinds]]


def tiers_of(plan: Plan) -> np.ndarray:
    """A plan as a map ``[N, 2]``."""
    return np.stack([plan.weight_tiers, plan.output_tiers], axis=1)


def gather(runs: Sequence[Run], folder: Path, compiler: Plan, records: Records) -> Maps:
    """Maps that runs on one place kept, with the compiler's and the optimum."""
    place = (runs[0].network, runs[0].precision)
    kept = [arrays_of(run.file(folder)) for run in runs]
    tiers, kinds = [tiers_of(compiler)[None]], ["compiler"]
    for kind in ("near", "best"):
        found = [arrays[kind] for arrays in kept if kind in arrays and len(arrays[kind])]
        if found:
            joined = np.concatenate(found)
            chosen = joined[np.linspace(0, len(joined) - 1, min(MOST, len(joined))).astype(int)]
            tiers.append(chosen)
            kinds += [kind] * len(chosen)
    best = records.optimum(place)
    if best is not None:
        tiers.append(tiers_of(best.plan)[None])
        kinds.append("optimum")
    return Maps(place, np.concatenate(tiers), tuple(kinds))


def one_hot(maps: np.ndarray, place: Place) -> np.ndarray:
    """[K, columns] Booleans: a column for each tensor that takes room and each tier."""
    problem = problem_of(*place)
    taken = np.array([[layer.weight_bytes > 0, layer.output_bytes > 0] for layer in problem.layers])
    return (maps[:, taken][..., None] == np.arange(len(problem.tiers))).reshape(len(maps), taken.sum() * len(problem.tiers))


def embedded(maps: Maps, seed: int = 0) -> np.ndarray | None:
    """Points ``[K, 2]``, None of too few maps for a picture; umap-learn comes with the extra ``viz``."""
    if len(maps.tiers) <= NEIGHBOURS:
        return None
    hot = one_hot(maps.tiers, maps.place)
    with warnings.catch_warnings():
        # It says that a seed makes it use one thread, which is meant.
        warnings.simplefilter("ignore")
        from umap import UMAP

        found: np.ndarray = UMAP(
            n_neighbors=NEIGHBOURS, min_dist=LEAST_DISTANCE, metric="jaccard", random_state=seed, n_jobs=1
        ).fit_transform(hot)
    return found


def distances(left: np.ndarray, right: np.ndarray) -> float:
    """Mean Jaccard distance between rows of two sets of one-hot maps, or between different rows of one; NaN of none."""
    if min(len(left), len(right)) < (2 if left is right else 1):
        return float("nan")
    return float((pdist(left, "jaccard") if left is right else cdist(left, right, "jaccard")).mean())


def spread(found: Sequence[Maps]) -> str:
    """A table: how far maps of each sort are from each other, and from the compiler's."""
    rows = []
    for maps in found:
        near, best, compiler, optimum = (one_hot(maps.of(kind), maps.place) for kind in ("near", "best", "compiler", "optimum"))
        pairs = ((near, near), (best, best), (near, best), (near, compiler), (best, compiler), (best, optimum))
        cells = ["" if np.isnan(distance) else f"{distance:.3f}" for distance in (distances(*pair) for pair in pairs)]
        rows.append([*maps.place, len(near), len(best), *cells])
    head = ["near", "best", "in near", "in best", "near, best", "near, compiler", "best, compiler", "best, optimum"]
    return table(rows, ["network", "precision", *head])
