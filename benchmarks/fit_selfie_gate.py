"""Fits the presence gate of the selfie networks, and measures it by cross-validation; on the CPU, in minutes.

It writes the classifier that ships, ``src/vitascope/models/data/presence_gate.json``, and the rows that the
documentation quotes, ``benchmarks/results/selfie_gate_fit.json``. The same folders give the same numbers.

Usage: python benchmarks/fit_selfie_gate.py --people FOLDER --pictures FOLDER

None of these pictures ships with Vitascope; clone them from GitHub:

- ``--people``: VikramShenoy97/Human-Segmentation-Dataset, 290 photographs of people in ``Training_Images``, their
  masks in ``Ground_Truth``.
- ``--pictures``: EliSchwartz/imagenet-sample-images, one photograph of each of ImageNet's 1000 classes. Which of them
  show people, and which no one, was decided by looking at each (``selfie_gate_samples.py`` lists them).
- scikit-image's own scenes and drawings, and drawn patterns.

``selfie_gate_samples.py`` makes about 11,000 pictures from them. Each network mattes its own, the gate's own code takes
the second look, and a weighted logistic regression separates people from the rest. Pictures in which nothing is
claimed are not fitted on.

Cross-validation: five folds by source photograph, so that no crop of a photograph judges another. Each network's bias
then takes in the highest threshold at which every kind of people keeps ``KEPT_AT_LEAST`` of what was found ungated.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from selfie_gate import DATA, NETWORKS, commit
from selfie_gate_samples import ASPECTS, Darkroom, Network, Source, sources
from vitascope.models.presence import EVIDENCE, MIN_AREA, evidence, views
from vitascope.models.selfie import SelfieNetwork

Floats = npt.NDArray[np.float64]

GATE = DATA / "presence_gate.json"
ROWS = Path(__file__).parent / "results" / "selfie_gate_fit.json"

PEOPLE = ("whole", "small", "partly seen", "seated")
EMPTY = ("empty scenes", "objects", "animals", "synthetic")
WEIGHTS = {"empty scenes": 1.5, "animals": 0.6, "unmasked people": 0.7}
"""How much a picture of a kind counts; 1 for the others. People together weigh as much as the rest together."""
RIDGE, FOLDS = 0.003, 5
FOUND_AT_ALL = 0.3
"""Recall of the ungated network below which a picture of people teaches nothing."""
KEPT_AT_LEAST = 0.905
CLAIMED = 0.002
"""Part of the frame that must be claimed before an empty picture counts as invented in."""


# --- evidence ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """All samples as the gate meets them; one entry each."""

    source: npt.NDArray[np.str_]
    kind: npt.NDArray[np.str_]
    network: npt.NDArray[np.str_]
    dark: npt.NDArray[np.bool_]
    found: Floats
    """[N, 71]: what the classifier weighs; zeros where the gate would not look."""
    area: Floats
    """Part of the frame that the ungated matte claims."""
    recall: Floats
    """Part of the people's pixels that the ungated matte found; 1 where no mask says."""
    matte: Floats
    """Part of the frame that it found of them."""

    @property
    def person(self) -> npt.NDArray[np.bool_]:
        """True for pictures of people."""
        return ~np.isin(self.kind, EMPTY)

    @property
    def looked_at(self) -> npt.NDArray[np.bool_]:
        """True where the gate would look."""
        return self.area >= MIN_AREA


def gathered(found: list[Source]) -> Evidence:
    """Matte every sample, and take the second look."""
    scenes = [source for source in found if source.kind == "empty scenes"]
    looker, columns = SelfieNetwork(*NETWORKS), []
    for network in ASPECTS:
        ungated = SelfieNetwork(*NETWORKS, gate=False, choice=network)
        size = ungated.input_for((1, 1)).size[::-1]
        for sample in (s for source in found for s in Darkroom(source, network, scenes).samples()):
            picture = cv2.resize(sample.picture, size, interpolation=cv2.INTER_AREA)
            alpha = ungated.infer(picture[None, None], ungated.new_state())[0].alpha
            assert alpha is not None
            seen, area, recall, matte = (
                np.zeros(sum(EVIDENCE.values())),
                float((alpha > 0.5).mean()),
                1.0,
                0.0,
            )
            if sample.mask is not None:
                mask = cv2.resize(np.ascontiguousarray(sample.mask), size, interpolation=cv2.INTER_AREA)
                matte = float((alpha[0] * mask).mean())
                recall = matte / max(float(mask.mean()), 1e-6)
            if area >= MIN_AREA:
                looks = [looker.look_again(view) for view in views(picture, alpha[0])]
                seen = evidence(alpha[0], looks).astype(np.float64)
            columns.append(
                (sample.source, sample.kind, network, sample.dark, seen, area, recall, matte),
            )
    return Evidence(*(np.array(column) for column in zip(*columns, strict=True)))


# --- fitting -----------------------------------------------------------------------------------------------------


def fitted(all_: Evidence, chosen: npt.NDArray[np.bool_]) -> tuple[Floats, float]:
    """Weights and bias of a ridge-penalised, class-balanced logistic regression; Newton's method."""
    chosen = chosen & (all_.area >= CLAIMED) & (all_.recall > FOUND_AT_ALL)
    found, person = all_.found[chosen], all_.person[chosen]
    weight = np.array([WEIGHTS.get(kind, 1.0) for kind in all_.kind[chosen]])
    for group in (person, ~person):
        weight[group] *= 0.5 * len(weight) / weight[group].sum()
    mean, spread = found.mean(axis=0), found.std(axis=0) + 1e-6
    inputs = np.hstack([(found - mean) / spread, np.ones((len(found), 1))])
    ridge = np.append(np.full(len(mean), RIDGE * len(found)), 1e-6)
    solution = np.zeros(len(ridge))
    for _ in range(25):
        belief = 1 / (1 + np.exp(-np.clip(inputs @ solution, -30, 30)))
        slope = inputs.T @ (weight * (belief - person)) + ridge * solution
        curvature = (inputs * (weight * belief * (1 - belief))[:, None]).T @ inputs + np.diag(ridge)
        solution -= np.linalg.solve(curvature, slope)
    weights = solution[:-1] / spread
    return weights, float(solution[-1] - weights @ mean)


def cross_validated(all_: Evidence) -> Floats:
    """Each sample's score by a classifier that never saw its photograph; -inf where the gate would not look."""
    number = np.unique(all_.source, return_inverse=True)[1]
    fold = np.random.default_rng(0).integers(0, FOLDS, number.max() + 1)[number]
    scores = np.full(len(fold), -np.inf)
    for held_out in range(FOLDS):
        weights, bias = fitted(all_, fold != held_out)
        judged = (fold == held_out) & all_.looked_at
        scores[judged] = all_.found[judged] @ weights + bias
    return scores


def people(all_: Evidence, network: Network) -> dict[str, npt.NDArray[np.bool_]]:
    """Which samples show people of each kind; ``dark`` are those of any kind that were darkened."""
    here = (all_.network == network) & np.isin(all_.kind, PEOPLE)
    return {kind: here & (all_.kind == kind) for kind in PEOPLE} | {"dark": here & all_.dark}


def kept(all_: Evidence, shown: npt.NDArray[np.bool_], where: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Part of the ungated recall that is kept, mean over pictures; and of the people's pixels found."""
    return tuple(
        float(found[where & shown].sum() / found[where].sum()) for found in (all_.recall, all_.matte)
    )


def threshold(all_: Evidence, scores: Floats, network: Network) -> float:
    """The highest score to ask for that keeps ``KEPT_AT_LEAST`` of every kind of people."""
    kinds, low, high = people(all_, network), -30.0, 30.0
    for _ in range(40):
        middle = (low + high) / 2
        least = min(min(kept(all_, scores > middle, where)) for where in kinds.values())
        low, high = (middle, high) if least >= KEPT_AT_LEAST else (low, middle)
    return low


def measured(all_: Evidence, scores: Floats, network: Network, limit: float) -> list[dict[str, Any]]:
    """One row for each kind of people and of empty pictures."""
    rows: list[dict[str, Any]] = []
    for kind, where in people(all_, network).items():
        recall, matte = kept(all_, scores > limit, where)
        row = {"claim": kind, "network": network, "pictures": int(where.sum())}
        rows.append(row | {"recall_kept": round(recall, 3), "matte_kept": round(matte, 3)})
    for kind in EMPTY:
        where = (all_.network == network) & (all_.kind == kind)
        row = {"claim": kind, "network": network, "pictures": int(where.sum())}
        claimed = all_.area >= CLAIMED
        invented = [round(float(c[where].mean()), 3) for c in (claimed, claimed & (scores > limit))]
        rows.append(row | {"invented_ungated": invented[0], "invented_gated": invented[1]})
    return rows


def main() -> None:
    """Fit, measure, and keep both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--people", type=Path, required=True)
    parser.add_argument("--pictures", type=Path, required=True)
    options = parser.parse_args()
    all_ = gathered(sources(options.people, options.pictures))
    scores = cross_validated(all_)
    limits = {network: threshold(all_, scores, network) for network in ASPECTS}
    weights, bias = fitted(all_, np.ones(len(scores), bool))
    stamp = {
        "command": "python benchmarks/fit_selfie_gate.py --people Human-Segmentation-Dataset "
        "--pictures imagenet-sample-images",
        "commit": commit(),
        "date": date.today().isoformat(),
    }
    parts = np.split(weights.round(4), np.cumsum(list(EVIDENCE.values()))[:-1])
    named = {
        name: part.tolist() if len(part) > 1 else float(part[0])
        for name, part in zip(EVIDENCE, parts, strict=True)
    }
    gate = {
        "what": "Classifier of the selfie networks' presence gate; vitascope/models/presence.py uses it.",
        "samples": len(scores),
        **stamp,
        "bias": {network: round(bias - limit, 4) for network, limit in limits.items()},
        "weights": named,
    }
    GATE.write_text(json.dumps(gate, indent=1) + "\n", encoding="utf-8")
    method = f"{FOLDS}-fold cross-validation, folds by source photograph; single pictures, no hysteresis"
    rows = [row for network in ASPECTS for row in measured(all_, scores, network, limits[network])]
    ROWS.write_text(json.dumps([row | {"method": method} | stamp for row in rows], indent=1) + "\n")
    for row in rows:
        print(*row.values())


if __name__ == "__main__":
    main()
