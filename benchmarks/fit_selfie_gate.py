"""Fits the presence gate of the selfie networks, and tests it on photographs that neither fit nor thresholds saw.

It writes the classifier that ships, ``src/vitascope/models/data/presence_gate.npz``, and the rows that the
documentation quotes, ``benchmarks/results/selfie_gate_fit.json``. On the CPU, in a quarter of an hour; needs torch.

Usage: python benchmarks/fit_selfie_gate.py FOLDER [--evidence FILE.npz]

``FOLDER`` holds clones of these GitHub repositories; none of their pictures ships with Vitascope:

- VikramShenoy97/Human-Segmentation-Dataset: 290 photographs of people with masks.
- EliSchwartz/imagenet-sample-images: one photograph of each of ImageNet's 1000 classes.
- BIDS/BSDS500: 500 photographs of nature, places, animals and people.
- lightly-ai/coco128_yolo: the first photographs of COCO, 256 of them, 200 with masks.
- MachineLearning2020/Homework2-Caltech101: Caltech-101, objects and animals.
- lionelmessi6410/Scene-Recognition-with-Bag-of-Words: rooms and views in grey, of the 15-scenes collection.

It also uses scikit-image's own pictures, and drawn patterns.

By photograph, a quarter of the first two and of Caltech-101, the authors' own test folders of BSDS500 and of the 15
scenes, and COCO's val2017 are the test. The judges are fitted on the rest. The thresholds come from scores of
the rest in three-fold cross-validation: each network's is the highest at which every kind of people keeps
``KEPT_AT_LEAST`` of the ungated recall. The test uses the judges and thresholds that ship.

``--evidence`` saves the networks' results for every picture, which take most of the time; an existing file is
read.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from row_stamp import write_rows
from selfie_gate import NETWORKS, commit
from selfie_gate_photos import Source, fraction, sources
from selfie_gate_samples import ASPECTS, Darkroom, Network, Sample
from vitascope.models.selfie.presence import (
    CLAIMANTS,
    EVIDENCE_SIZE,
    FEATURE_COUNT,
    GATE_PATH,
    INPUT_LIMIT,
    MIN_AREA,
    PersonFeatures,
    evidence,
    views,
)
from vitascope.models.selfie.selfie import SelfieNetwork, WideFrameChoice

Floats = npt.NDArray[np.float32]
Bools = npt.NDArray[np.bool_]
Row = tuple[Any, ...]

ROWS = Path(__file__).parent / "results" / "selfie_gate_fit.json"

PEOPLE = ("whole", "small", "partly seen", "seated")
EMPTY = ("empty scenes", "objects", "animals", "synthetic")
WEIGHTS = {"empty scenes": 1.5, "animals": 0.6, "unmasked people": 0.7}
"""How much a picture of a kind counts; 1 for the others. People together weigh as much as the rest together."""
FOUND_AT_ALL = 0.3
"""Recall of the ungated network below which a picture of people is not used for fitting."""
CLAIMED = 0.002
"""Share of an empty picture's frame above which a matte counts as an invented person."""
KEPT_AT_LEAST = 0.93
"""Above the required 0.9: photographs that did not determine the threshold lose a little more."""
FOLDS, SEEDS, COMPONENTS, HIDDEN, EPOCHS, BATCH = 3, (0, 1), 384, 48, 40, 128
RIDGE = 0.003
LOST_AT_MOST, MISTAKEN_AT_MOST = 0.002, 0.002
"""Errors allowed to the quick score: in people's recall, and in empty pictures that are claimed."""


# --- evidence ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """All samples as the gate meets them; one entry each."""

    source: npt.NDArray[np.str_]
    collection: npt.NDArray[np.str_]
    tested: Bools
    kind: npt.NDArray[np.str_]
    network: npt.NDArray[np.str_]
    dark: Bools
    area: Floats
    """Part of the frame that the ungated matte claims."""
    recall: Floats
    """Part of the people's pixels that the ungated matte found; 1 where no mask says."""
    matte: Floats
    """Part of the frame that it found of them."""
    found: Floats
    """[N, 71]; zeros where the gate would not look."""
    features: Floats
    """[N, 2304]; zeros where the gate would not look."""

    @property
    def person(self) -> Bools:
        """True for pictures of people."""
        return ~np.isin(self.kind, EMPTY)

    @property
    def looked_at(self) -> Bools:
        """True where the gate would look."""
        return self.area >= MIN_AREA

    @property
    def fold(self) -> npt.NDArray[np.int_]:
        """0..2, or -1 for the test."""
        folds = {name: fraction("fold" + name) % FOLDS for name in np.unique(self.source)}
        return np.where(self.tested, -1, [folds[name] for name in self.source])


class Lab:
    """Runs the networks on samples; one in each process."""

    def __init__(self) -> None:
        cv2.setNumThreads(1)
        self.looker, self.features = SelfieNetwork(*NETWORKS, threads=1), PersonFeatures(threads=1)
        self.ungated = {
            network: SelfieNetwork(*NETWORKS, threads=1, gate=False, choice=network) for network in ASPECTS
        }

    def matte(self, picture: Floats, network: Network) -> Floats:
        """[h, w, 3] -> [h, w]; of any size for the general network."""
        size = self.ungated[network].input_for((1, 1)).size[::-1]
        shown = cv2.resize(picture, size, interpolation=cv2.INTER_LINEAR)
        (estimate,) = self.ungated[network].infer(shown[None, None], self.ungated[network].new_state())
        assert estimate.alpha is not None
        return np.asarray(cv2.resize(estimate.alpha[0], picture.shape[1::-1], interpolation=cv2.INTER_AREA))

    def row(self, sample: Sample) -> Row:
        """One sample's entries of ``Evidence``."""
        size = self.ungated[sample.network].input_for((1, 1)).size[::-1]
        picture = cv2.resize(sample.picture, size, interpolation=cv2.INTER_AREA)
        alpha, choice = self.matte(picture, sample.network), WideFrameChoice()
        if sample.network == "landscape" and choice.is_due(alpha[None]):
            general = self.matte(picture, "general")
            choice.compare(alpha[None], general[None])
            alpha = general if choice.claimant == "general" else alpha
        area, recall, matte = float((alpha > 0.5).mean()), 1.0, 0.0
        found, features = np.zeros(EVIDENCE_SIZE), np.zeros(FEATURE_COUNT)
        if sample.mask is not None:
            mask = cv2.resize(np.ascontiguousarray(sample.mask), size, interpolation=cv2.INTER_AREA)
            matte = float((alpha * mask).mean())
            recall = matte / max(float(mask.mean()), 1e-6)
        if area >= MIN_AREA:
            shown = views(picture, alpha)
            found = evidence(alpha, [self.looker.look_again(view) for view in shown])
            features = self.features.of(shown)
        source = sample.source
        about = source.name, source.collection, source.tested, sample.kind, sample.network, sample.dark
        return (*about, area, recall, matte, found.astype(np.float16), features.astype(np.float16))


_photographs: list[Source] = []
_lab: list[Lab] = []


def _prepare(folder: Path) -> None:
    """Initialise a worker, which is spawned: a fork of a process with threads may hang."""
    _photographs[:] = sources(folder)
    _lab[:] = [Lab()]


def _rows(number: int) -> list[Row]:
    """All samples of one photograph, in a worker."""
    source = _photographs[number]
    scenes = [
        scene
        for scene in _photographs
        if scene.kind == "empty scenes"
        and (
            scene.collection == "scikit-image"
            or (scene.collection == "ImageNet" and scene.tested == source.tested)
        )
    ]
    samples = (sample for network in ASPECTS for sample in Darkroom(source, network, scenes).samples())
    return [_lab[0].row(sample) for sample in samples]


def gathered(folder: Path) -> Evidence:
    """Matte every sample, take the second look, and ask the second opinion."""
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    count = len(sources(folder))
    with multiprocessing.get_context("spawn").Pool(workers, _prepare, (folder,)) as pool:
        rows = [row for part in pool.imap(_rows, range(count), chunksize=8) for row in part]
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Evidence(*columns)


def remembered(file: Path | None, gather: Callable[[], Evidence]) -> Evidence:
    """Read the evidence from ``file``, or gather it now and save it there."""
    names = [field.name for field in fields(Evidence)]
    if file is not None and file.exists():
        with np.load(file) as stored:
            return Evidence(*(stored[name] for name in names))
    all_ = gather()
    if file is not None:
        np.savez(file, **{name: getattr(all_, name) for name in names})
    return all_


# --- fitting -----------------------------------------------------------------------------------------------------


def teaching(all_: Evidence) -> tuple[Bools, Floats]:
    """Choose the samples for fitting, and their weights."""
    usable = ~all_.tested & (all_.area >= CLAIMED) & (all_.recall > FOUND_AT_ALL)
    return usable, np.array([WEIGHTS.get(kind, 1.0) for kind in all_.kind], np.float32)


def balanced(person: Bools, weight: Floats) -> Floats:
    """People together weigh as much as the rest together."""
    weight = weight.copy()
    for group in (person, ~person):
        weight[group] *= 0.5 * len(weight) / weight[group].sum()
    return weight


def quick_fit(found: Floats, person: Bools, weight: Floats) -> Floats:
    """Weights of a ridge-penalised logistic regression; Newton's method."""
    found, weight = found.astype(np.float64), balanced(person, weight)
    mean, spread = found.mean(axis=0), found.std(axis=0) + 1e-6
    inputs = np.hstack([(found - mean) / spread, np.ones((len(found), 1))])
    ridge = np.append(np.full(len(mean), RIDGE * len(found)), 1e-6)
    solution = np.zeros(len(ridge))
    for _ in range(25):
        belief = 1 / (1 + np.exp(-np.clip(inputs @ solution, -30, 30)))
        slope = inputs.T @ (weight * (belief - person)) + ridge * solution
        curvature = (inputs * (weight * belief * (1 - belief))[:, None]).T @ inputs + np.diag(ridge)
        solution -= np.linalg.solve(curvature, slope)
    return (solution[:-1] / spread).astype(np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """The slow judge, without the thresholds; see ``presence.SlowJudge``."""

    centre: Floats
    scale: Floats
    hidden: Floats
    hidden_bias: Floats
    output: Floats

    def scores(self, inputs: Floats) -> Floats:
        """[N, 71 + 2304] -> [N]."""
        clipped = np.clip((inputs - self.centre) * self.scale, -INPUT_LIMIT, INPUT_LIMIT)
        return np.asarray(np.maximum(clipped @ self.hidden.T + self.hidden_bias, 0) @ self.output)


def slow_fit(inputs: Floats, person: Bools, weight: Floats) -> Fitted:
    """One hidden layer on evidence and the features' principal components; all seeds' networks side by side."""
    centre, scale = inputs.mean(axis=0), 1 / (inputs.std(axis=0) + 1e-3)
    clipped = np.clip((inputs - centre) * scale, -INPUT_LIMIT, INPUT_LIMIT)
    features = clipped[:, EVIDENCE_SIZE:]
    variances, directions = np.linalg.eigh(features.T @ features / len(features))
    basis = directions[:, ::-1][:, :COMPONENTS] / np.sqrt(variances[::-1][:COMPONENTS] + 1e-3)
    reduced = np.hstack([clipped[:, :EVIDENCE_SIZE], features @ basis]).astype(np.float32)
    layers = [trained(reduced, person, balanced(person, weight), seed) for seed in SEEDS]
    hidden, hidden_bias, output = (np.concatenate(parts) for parts in zip(*layers, strict=True))
    unfolded = np.hstack([hidden[:, :EVIDENCE_SIZE], hidden[:, EVIDENCE_SIZE:] @ basis.T])
    # Measure in float16, which ships.
    return Fitted(
        *(
            np.float32(np.float16(part))
            for part in (centre, scale, unfolded, hidden_bias, output / len(SEEDS))
        )
    )


def trained(inputs: Floats, person: Bools, weight: Floats, seed: int) -> tuple[Floats, Floats, Floats]:
    """Weights [H, n] and biases [H] of the hidden layer, and weights [H] of the output."""
    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        torch.nn.Dropout(0.2),
        torch.nn.Linear(inputs.shape[1], HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(HIDDEN, 1, bias=False),
    )
    given, wanted, counts = (torch.from_numpy(np.asarray(a, np.float32)) for a in (inputs, person, weight))
    steps = len(given) // BATCH
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=0.03)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=EPOCHS * steps)
    for _ in range(EPOCHS):
        order = torch.randperm(len(given))[: steps * BATCH].reshape(steps, BATCH)
        for chosen in order:
            loss = torch.nn.functional.binary_cross_entropy_with_logits(
                network(given[chosen])[:, 0], wanted[chosen] * 0.96 + 0.02, reduction="none"
            )
            optimiser.zero_grad()
            (loss * counts[chosen]).mean().backward()
            optimiser.step()
            schedule.step()
    first, last = network[1], network[4]
    return tuple(np.asarray(p.detach()) for p in (first.weight, first.bias, last.weight[0]))


def inputs_of(all_: Evidence) -> Floats:
    """[N, 71 + 2304], what the slow judge takes."""
    return np.hstack([all_.found, all_.features]).astype(np.float32)


# --- thresholds --------------------------------------------------------------------------------------------------


def people(all_: Evidence, where: Bools) -> dict[str, Bools]:
    """Which samples show people of each kind; ``dark`` are those of any kind that were darkened."""
    here = where & np.isin(all_.kind, PEOPLE)
    return {kind: here & (all_.kind == kind) for kind in PEOPLE} | {"dark": here & all_.dark}


def kept(all_: Evidence, shown: Bools, where: Bools) -> tuple[float, float]:
    """Part of the ungated recall that is kept, mean over pictures; and of the people's pixels found."""
    return tuple(
        float(found[where & shown].sum() / found[where].sum()) for found in (all_.recall, all_.matte)
    )


def highest(enough: Callable[[float], bool]) -> float:
    """The highest score at which ``enough`` holds."""
    low, high = -30.0, 30.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """One network's thresholds."""

    slow: float
    surely_not: float
    surely: float


def limits(all_: Evidence, quick: Floats, slow: Floats, network: Network) -> Limits:
    """Choose thresholds from cross-validated scores of samples outside the test."""
    here = ~all_.tested & (all_.network == network)
    kinds = people(all_, here).values()
    empty = here & ~all_.person & all_.looked_at
    surely_not = highest(
        lambda score: all(min(kept(all_, quick > score, kind)) >= 1 - LOST_AT_MOST for kind in kinds)
    )
    judged = np.where(quick > surely_not, slow, -np.inf)
    return Limits(
        slow=highest(
            lambda score: all(min(kept(all_, judged > score, kind)) >= KEPT_AT_LEAST for kind in kinds)
        ),
        surely_not=surely_not,
        surely=float(np.quantile(quick[empty], 1 - MISTAKEN_AT_MOST)),
    )


# --- measuring ---------------------------------------------------------------------------------------------------


def measured(all_: Evidence, shown: Bools, asked: Bools, network: Network) -> Iterator[dict[str, Any]]:
    """Rows: each kind of people and of empty pictures, of the parts fitted on and tested on."""
    for part, here in (("cross-validated", ~all_.tested), ("test", all_.tested)):
        where = here & (all_.network == network)
        groups = people(all_, where) | {"photographed (COCO)": where & (all_.kind == "photographed")}
        for kind, group in groups.items():
            recall, matte = kept(all_, shown, group)
            row = {"claim": kind, "network": network, "part": part, "pictures": int(group.sum())}
            yield row | {"recall_kept": round(recall, 3), "matte_kept": round(matte, 3)}
        claimed = all_.area >= CLAIMED
        groups = {kind: where & (all_.kind == kind) for kind in EMPTY}
        for kind in ("empty scenes", "animals"):
            for collection in np.unique(all_.collection[groups[kind]]):
                groups[f"{kind}, {collection}"] = groups[kind] & (all_.collection == collection)
        for kind, group in groups.items():
            if group.any():
                photographs = np.unique(all_.source[group])
                mistaken = np.unique(all_.source[group & claimed & shown])
                row = {"claim": kind, "network": network, "part": part, "pictures": int(group.sum())}
                yield row | {
                    "invented_ungated": round(float(claimed[group].mean()), 4),
                    "invented_gated": round(float((claimed & shown)[group].mean()), 4),
                    "photographs": len(photographs),
                    "photographs_mistaken": len(mistaken),
                    "opinions_asked": round(float(asked[group].mean()), 3),
                }


def main() -> None:
    """Fit, test, and keep both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--evidence", type=Path)
    options = parser.parse_args()
    all_ = remembered(options.evidence, lambda: gathered(options.folder))
    inputs, (usable, weight), fold = inputs_of(all_), teaching(all_), all_.fold
    quick, slow = np.full(len(fold), -np.inf), np.full(len(fold), -np.inf)
    for held_out in range(-1, FOLDS):
        taught, judged = usable & (fold != held_out), (fold == held_out) & all_.looked_at
        lesson = all_.person[taught], weight[taught]
        quick_weights = quick_fit(all_.found[taught], *lesson)
        fitted = slow_fit(inputs[taught], *lesson)
        quick[judged], slow[judged] = all_.found[judged] @ quick_weights, fitted.scores(inputs[judged])
        if held_out == -1:
            shipped = quick_weights, fitted
    stamp = {
        "command": "python benchmarks/fit_selfie_gate.py FOLDER",
        "commit": commit(),
        "date": date.today().isoformat(),
    }
    rows, found = [], {network: limits(all_, quick, slow, network) for network in CLAIMANTS}
    for network, limit in found.items():
        asked = all_.looked_at & (quick > limit.surely_not)
        rows += list(measured(all_, asked & (slow > limit.slow), asked, network))
    write(*shipped, found, {"samples": len(fold), "taught": int(usable.sum()), **stamp})
    write_rows(ROWS, [row | stamp for row in rows])
    for row in rows:
        print(*row.values())


def write(quick_weights: Floats, fitted: Fitted, found: dict[Network, Limits], about: dict[str, Any]) -> None:
    """Write the file that ships."""
    np.savez_compressed(
        GATE_PATH,
        about=np.array(json.dumps(about)),
        quick_weights=quick_weights,
        quick_surely_not=np.array([found[network].surely_not for network in CLAIMANTS], np.float32),
        quick_surely=np.array([found[network].surely for network in CLAIMANTS], np.float32),
        bias=np.array([-found[network].slow for network in CLAIMANTS], np.float32),
        **{field.name: np.float16(getattr(fitted, field.name)) for field in fields(Fitted)},
    )


if __name__ == "__main__":
    main()
