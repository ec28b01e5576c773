"""Decode a user network's outputs to alpha, with one decoder per declared kind.

A decoder is chosen once, from the outputs of a trial run, and then called for every batch.

========  =====================================  ============================================================
kind      outputs                                alpha
========  =====================================  ============================================================
matte     [N, 1, h, w], [N, h, w], [N, h, w, 1]  the value, which must lie in 0..1
binary    as matte, or two channels              sigmoid, or softmax of the person's channel
semantic  [N, C, h, w], [N, h, w, C], or a       softmax of the person's channel; or 1 where the map is the
          whole-number map [N, h, w]             person's class
yolo-seg  [N, 4 + classes + k, anchors] and      largest sigmoid of the persons' masks, each inside its box
          [N, k, h, w]
========  =====================================  ============================================================

A sigmoid or softmax already inside the graph is detected and not applied twice. Sources: YOLOv8's export (boxes as
centre and size in input pixels, class scores in 0..1, mask coefficients last; Bolya et al.: YOLACT, 2019, for masks
as linear combinations of prototypes).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.errors import ModelError
from vitascope.models.network import FloatArray

NetworkKind = Literal["matte", "binary", "semantic", "yolo-seg"]

Outputs = Mapping[str, npt.NDArray[Any]]
"""A network's outputs by name, in the order of the file."""

Decoder = Callable[[Outputs, tuple[int, int]], FloatArray]
"""Converts outputs of N pictures, computed at a (height, width), to alpha, float32 [N, h, w], 0..1."""

PERSON_CLASSES: Mapping[int, int] = {
    2: 1,  # background, person
    19: 11,  # Cityscapes, training ids
    21: 15,  # Pascal VOC, background first
    80: 0,  # COCO things
    81: 1,  # COCO things, background first
    91: 1,  # COCO's original ids
    133: 0,  # COCO panoptic
    150: 12,  # ADE20K
    171: 0,  # COCO-Stuff
}
"""The person's index by number of classes, for semantic networks whose person class the user did not give."""

_ONE_CHANNEL = "[N, 1, h, w], [N, h, w] or [N, h, w, 1]"
EXPECTED_OUTPUTS: Mapping[NetworkKind, str] = {
    "matte": _ONE_CHANNEL,
    "binary": f"{_ONE_CHANNEL}, or two channels",
    "semantic": "[N, classes, h, w], [N, h, w, classes] or a whole-number map [N, h, w]",
    "yolo-seg": "[N, 4 + classes + k, anchors] and [N, k, h, w]",
}
"""The outputs that each kind has, as described in error messages."""

# YOLOv8's own: a person's lowest score, and the overlap from which two boxes show one person.
_MIN_SCORE, _MAX_BOX_OVERLAP = 0.25, 0.7
_TOLERANCE = 0.01  # of a matte outside 0..1: half-precision exports overshoot a little


def choose_decoder(
    kind: NetworkKind,
    trial: Outputs,
    *,
    input_size: tuple[int, int],
    normalised: frozenset[str],
    person_class: int | None,
    source: str,
) -> Decoder:
    """Choose the decoder of a network.

    Args:
        kind: The declared meaning of the outputs.
        trial: Outputs of one picture.
        input_size: (height, width) of that picture as network input.
        normalised: Names of the outputs that come from a sigmoid or softmax.
        person_class: Index of the person's class; the kind's default if None.
        source: The file, for messages.

    Raises:
        ModelError: The outputs do not fit the kind, or the person's class is unknown or out of range.
    """
    if kind == "yolo-seg":
        return _yolo_decoder(trial, person_class=person_class, source=source)
    for name, output in trial.items():
        if output.ndim not in (3, 4):
            continue
        last = _channels_come_last(output, input_size)
        channels = 1 if output.ndim == 3 else output.shape[-1 if last else 1]
        if channels == 1 and kind in ("matte", "binary"):
            if person_class is not None:
                raise ModelError(f"{source}: output {name!r} has one channel, so it takes no person class")
            if kind == "matte":
                return _matte_decoder(name, last=last, source=source)
            return _sigmoid_decoder(name, last=last, apply=name not in normalised)
        if channels == 1 and kind == "semantic" and np.issubdtype(output.dtype, np.integer):
            if person_class is None:
                raise ModelError(
                    f"{source}: output {name!r} is a map of class numbers; name the person's with a person class"
                )
            return _map_decoder(name, last=last, person_class=person_class)
        if (channels == 2 and kind == "binary") or (channels > 1 and kind == "semantic"):
            person = _person_of(channels, person_class, source=source)
            return _softmax_decoder(name, last=last, person=person, apply=name not in normalised)
    raise _wrong_outputs(kind, trial, source)


def _matte_decoder(name: str, *, last: bool, source: str) -> Decoder:
    def decode(outputs: Outputs, _: tuple[int, int]) -> FloatArray:
        alpha = _one_plane(outputs[name], last=last).astype(np.float32, copy=False)
        low, high = float(alpha.min()), float(alpha.max())
        if not (low >= -_TOLERANCE and high <= 1 + _TOLERANCE):  # in this form it also refuses NaN
            raise ModelError(
                f"{source}: output {name!r} holds {low:.3g}..{high:.3g}, expected 0..1 for kind matte; "
                "declare kind binary if these are logits"
            )
        return np.asarray(np.clip(alpha, 0, 1), np.float32)

    return decode


def _sigmoid_decoder(name: str, *, last: bool, apply: bool) -> Decoder:
    def decode(outputs: Outputs, _: tuple[int, int]) -> FloatArray:
        alpha = _one_plane(outputs[name], last=last).astype(np.float32, copy=False)
        return _sigmoid(alpha) if apply else np.asarray(np.clip(alpha, 0, 1), np.float32)

    return decode


def _softmax_decoder(name: str, *, last: bool, person: int, apply: bool) -> Decoder:
    def decode(outputs: Outputs, _: tuple[int, int]) -> FloatArray:
        planes = np.asarray(_channels_first(outputs[name], last=last), np.float32)
        if not apply:
            return np.asarray(np.clip(planes[:, person], 0, 1), np.float32)
        # The largest logit is subtracted from every channel so that none overflows.
        powers = np.exp(planes - planes.max(axis=1, keepdims=True))
        return np.asarray(powers[:, person] / powers.sum(axis=1), np.float32)

    return decode


def _map_decoder(name: str, *, last: bool, person_class: int) -> Decoder:
    def decode(outputs: Outputs, _: tuple[int, int]) -> FloatArray:
        return np.asarray(_one_plane(outputs[name], last=last) == person_class, np.float32)

    return decode


def _yolo_decoder(trial: Outputs, *, person_class: int | None, source: str) -> Decoder:
    detections = [name for name, output in trial.items() if output.ndim == 3]
    prototypes = [name for name, output in trial.items() if output.ndim == 4]
    if len(detections) != 1 or len(prototypes) != 1:
        raise _wrong_outputs("yolo-seg", trial, source)
    mask_count = trial[prototypes[0]].shape[1]
    class_count = trial[detections[0]].shape[1] - 4 - mask_count
    if class_count < 1:
        raise _wrong_outputs("yolo-seg", trial, source)
    person = 0 if person_class is None else person_class
    if not 0 <= person < class_count:
        raise ModelError(f"{source}: person class {person} is not one of its {class_count} classes, 0 first")

    def decode(outputs: Outputs, input_size: tuple[int, int]) -> FloatArray:
        pairs = zip(outputs[detections[0]], outputs[prototypes[0]], strict=True)
        return np.stack(
            [
                _person_masks(
                    np.asarray(rows, np.float32),
                    np.asarray(planes, np.float32),
                    score_row=4 + person,
                    input_size=input_size,
                )
                for rows, planes in pairs
            ]
        )

    return decode


def _person_masks(
    rows: FloatArray, prototypes: FloatArray, *, score_row: int, input_size: tuple[int, int]
) -> FloatArray:
    """Union of one picture's person masks.

    Args:
        rows: float32 [4 + classes + k, anchors]: box centre x, y, width, height, in input pixels; scores; k mask
            coefficients.
        prototypes: float32 [k, h, w].
        score_row: Row of the person's score.
        input_size: (height, width) of the network's input.

    Returns:
        float32 [h, w].
    """
    mask_count, height, width = prototypes.shape
    alpha = np.zeros((height, width), np.float32)
    people = rows[:, rows[score_row] >= _MIN_SCORE]
    people = people[:, np.argsort(-people[score_row], kind="stable")]
    centres, sizes = people[:2].T, people[2:4].T
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], axis=1)  # [people, 4]: x0, y0, x1, y1
    scale = np.array([width / input_size[1], height / input_size[0]] * 2, np.float32)
    x, y = np.arange(width) + 0.5, np.arange(height) + 0.5
    for index in _suppress_duplicates(boxes):
        x0, y0, x1, y1 = boxes[index] * scale
        mask = _sigmoid(np.tensordot(people[-mask_count:, index], prototypes, axes=1))
        inside = ((y >= y0) & (y < y1))[:, None] & ((x >= x0) & (x < x1))[None]
        np.maximum(alpha, np.where(inside, mask, 0), out=alpha)
    return alpha


def _suppress_duplicates(boxes: FloatArray) -> list[int]:
    """Indices of the boxes, best first, that do not overlap a better one (greedy non-maximum suppression)."""
    kept: list[int] = []
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for index, box in enumerate(boxes):
        others = boxes[kept]
        extent = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
        shared = np.clip(extent, 0, None).prod(axis=1)
        union = np.maximum(areas[index] + areas[kept] - shared, 1e-9)
        if not np.any(shared / union > _MAX_BOX_OVERLAP):
            kept.append(index)
    return kept


def _channels_come_last(output: npt.NDArray[Any], input_size: tuple[int, int]) -> bool:
    """True if axes a and b of [N, a, b, c] have the input's aspect; False if b and c do."""
    if output.ndim == 3:
        return False
    _, a, b, c = output.shape
    height, width = input_size

    def is_picture(rows: int, columns: int) -> bool:
        return abs(rows * width - columns * height) <= height + width  # rounding of one row and one column

    return is_picture(a, b) and not is_picture(b, c)


def _channels_first(output: npt.NDArray[Any], *, last: bool) -> npt.NDArray[Any]:
    return np.moveaxis(output, -1, 1) if last else output


def _one_plane(output: npt.NDArray[Any], *, last: bool) -> npt.NDArray[Any]:
    """Reduce an output with one channel to [N, h, w]."""
    return output if output.ndim == 3 else _channels_first(output, last=last)[:, 0]


def _sigmoid(logits: FloatArray) -> FloatArray:
    # exp of a large positive number overflows; for logits below -80 the sigmoid is 0 in float32 anyway.
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -80, 80))), np.float32)


def _person_of(class_count: int, person_class: int | None, *, source: str) -> int:
    if person_class is None:
        if class_count not in PERSON_CLASSES:
            known = ", ".join(str(count) for count in PERSON_CLASSES)
            raise ModelError(
                f"{source}: which of its {class_count} classes is the person's? It is known for {known} classes; "
                "name it with a person class"
            )
        return PERSON_CLASSES[class_count]
    if not 0 <= person_class < class_count:
        raise ModelError(
            f"{source}: person class {person_class} is not one of its {class_count} classes, 0 first"
        )
    return person_class


def _wrong_outputs(kind: NetworkKind, trial: Outputs, source: str) -> ModelError:
    met = ", ".join(f"{name} {output.dtype} {list(output.shape)}" for name, output in trial.items())
    return ModelError(f"{source}: got outputs {met}, expected {EXPECTED_OUTPUTS[kind]} for kind {kind}")
