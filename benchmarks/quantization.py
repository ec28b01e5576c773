"""RVM and selfie on this processor in FP32, FP16 and INT8: size, alpha error on real frames, speed, the gate's verdict.

INT8 networks are ``ModelQuantizer``'s, of the very graphs that ``segment`` runs: RVM's encoder and recurrent decoder as
``models/rvm/rvm`` cuts them, and the selfie network with a free batch. Calibration takes the first frames of a clip,
the comparison others of the same clip. RVM mattes frames in order, with a state of its own for each variant, so what
the state picks up is in the error; alpha is taken at the network's size. Variants and FP32 are timed in turns.

Usage: python benchmarks/quantization.py [--clip FILE]... [--out ROWS.json]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from quantization_frames import EXAMPLE, alpha_of, clip_pictures
from row_stamp import commit, write_rows
from vitascope.config import vitascope_home
from vitascope.device import available_cores
from vitascope.gpu import ModelQuantizer
from vitascope.gpu.engines import OnnxRuntimeEngine
from vitascope.gpu.toolkit.quantization.quantizer import Comparison
from vitascope.models.rvm.rvm import RvmNetwork, cut_official_graph
from vitascope.models.selfie.selfie import _load as load_selfie
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.int8 import Recorder, int8_limits

RESULTS = Path(__file__).parent / "results" / "quantization.json"
RVM_SIZE, SELFIE_SIZE = (288, 512), (256, 256)
CALIBRATION, COMPARED = 8, 16
LIMITS = int8_limits(speedup=0.95)
"""As ``segment`` allows, and at most 5 % slower, which is within the noise."""
Networks = Mapping[str, bytes]


def weights_ratio(network: bytes) -> float | None:
    """FP32 bytes of the weights that are held in 8 bits / their bytes with scales and zero points."""
    tensors = {
        one.name: onnx.numpy_helper.to_array(one) for one in onnx.load_from_string(network).graph.initializer
    }
    before = after = 0
    for name, tensor in tensors.items():
        if name.endswith("_quantized"):
            base = name.removesuffix("_quantized")
            before += 4 * tensor.size
            after += sum(
                tensors[one].nbytes for one in (name, f"{base}_scale", f"{base}_zero_point") if one in tensors
            )
    return round(before / after, 2) if after else None


def sizes(exact: Networks, reduced: Networks) -> dict[str, Any]:
    """Count the bytes of the weights, and their reduction."""
    before, after = (
        sum(ModelQuantizer.measure_model_size(one) for one in nets.values()) for nets in (exact, reduced)
    )
    ratios = [ratio for ratio in map(weights_ratio, reduced.values()) if ratio is not None]
    return {
        "weights_mb": round(after / 1e6, 3),
        "size_ratio": round(before / after, 2),
        "int8_weights_ratio": min(ratios, default=None),
    }


def in_turns_ms(runs: tuple[Callable[[Any], Any], ...], pictures: np.ndarray) -> list[float]:
    """Median milliseconds of each for one picture; turns, so that both meet the same machine."""
    samples: list[list[float]] = [[] for _ in runs]
    for turn, picture in enumerate(pictures):
        for run, times in zip(runs, samples, strict=True):
            begun = time.perf_counter()
            run(picture)
            if turn:
                times.append((time.perf_counter() - begun) * 1e3)
    return [float(np.median(times)) for times in samples]


def row(comparison: Comparison, **given: Any) -> dict[str, Any]:
    """Make a row's values for one variant."""
    return {
        **given,
        "alpha_error_255": round(comparison.mean_error * 255, 3),
        "worst_frame_255": round(comparison.worst_frame_error * 255, 3),
        "ms": round(comparison.quantized_ms, 2),
        "fp32_ms": round(comparison.reference_ms, 2),
        "speedup": round(comparison.speedup, 2),
        "gate": str(ModelQuantizer.accept(comparison, LIMITS)),
    }


def rvm_rows(path: Path, clip: Path) -> list[dict[str, Any]]:
    """RVM's variants on one clip."""
    pictures = clip_pictures(clip, CALIBRATION + COMPARED, RVM_SIZE)
    encoder, decoder = cut_official_graph(path)
    exact = {"encoder": encoder, "decoder": decoder}
    recorders: list[Recorder] = []

    def recording(*parts: bytes) -> Any:
        recorders.extend(Recorder(part) for part in parts)
        return tuple(recorders)

    matte(RvmNetwork(path, open_engines=recording), pictures[:CALIBRATION])
    frames = [one.frames() for one in recorders]

    def static(method: Any) -> list[bytes]:
        return [
            ModelQuantizer.quantize_int8(network, given, method=method)
            for network, given in zip(exact.values(), frames, strict=True)
        ]

    percentile = static("percentile")
    variants: dict[str, list[bytes]] = {
        "fp32": [encoder, decoder],
        "fp16": [ModelQuantizer.quantize_fp16(one) for one in (encoder, decoder)],
        "int8 dynamic": [ModelQuantizer.quantize_dynamic(one) for one in (encoder, decoder)],
        "int8 percentile": percentile,
        "int8 entropy": static("entropy"),
        "int8 decoder alone": [encoder, percentile[1]],
    }
    reference = RvmNetwork(path)
    expected = matte(reference, pictures[CALIBRATION:])
    rows = []
    for name, parts in variants.items():
        network = RvmNetwork(
            path, open_engines=lambda *_, p=parts: tuple(OnnxRuntimeEngine(one) for one in p)
        )
        errors = np.abs(matte(network, pictures[CALIBRATION:]) - expected)
        states = reference.new_state(), network.new_state()
        fp32_ms, ms = in_turns_ms(
            (
                lambda picture, state=states[0]: reference.infer(picture[None], state),
                lambda picture, one=network, state=states[1]: one.infer(picture[None], state),
            ),
            pictures[CALIBRATION:],
        )
        comparison = comparison_of(errors, expected, fp32_ms, ms)
        kept = dict(zip(exact, parts, strict=True))
        rows.append(row(comparison, claim=f"quantization rvm {name}", clip=clip.name, **sizes(exact, kept)))
        print(json.dumps(rows[-1]), flush=True)
        network.close()
    return rows


def selfie_rows(path: Path, clip: Path) -> list[dict[str, Any]]:
    """The selfie network's variants on one clip, without its gate."""
    network, _, _ = load_selfie(path, size=SELFIE_SIZE, with_summary=False)
    stacked = clip_pictures(clip, CALIBRATION + COMPARED, SELFIE_SIZE)[:, 0].transpose(0, 2, 3, 1)
    pictures = np.ascontiguousarray(stacked)
    given = pictures[:CALIBRATION]
    variants = {
        "fp32": network,
        "fp16": ModelQuantizer.quantize_fp16(network),
        "int8 dynamic": ModelQuantizer.quantize_dynamic(network),
        "int8 percentile": ModelQuantizer.quantize_int8(network, given, method="percentile"),
        "int8 entropy": ModelQuantizer.quantize_int8(network, given, method="entropy"),
    }
    rows = []
    for name, one in variants.items():
        comparison = ModelQuantizer.compare(network, one, pictures[CALIBRATION:], iterations=60)
        claim = f"quantization selfie {name}"
        rows.append(row(comparison, claim=claim, clip=clip.name, **sizes({"all": network}, {"all": one})))
        print(json.dumps(rows[-1]), flush=True)
    return rows


def matte(network: RvmNetwork, pictures: np.ndarray) -> np.ndarray:
    """Compute alpha [T, 1, h, w] of frames in order, from an empty state."""
    state = network.new_state()
    alphas = []
    for picture in pictures:
        (estimate,) = network.infer(picture[None], state)
        alphas.append(alpha_of(estimate.gain, estimate.offset, picture))
    return np.stack(alphas)


def comparison_of(errors: np.ndarray, expected: np.ndarray, fp32_ms: float, ms: float) -> Comparison:
    """Errors of alpha as the gate takes them."""
    frames = errors.mean(axis=(1, 2, 3))
    return Comparison(
        frames=len(errors),
        mean_error=float(frames.mean()),
        worst_frame_error=float(frames.max()),
        max_error=float(errors.max()),
        relative_error=float(errors.mean() / expected.mean()),
        reference_ms=fp32_ms,
        quantized_ms=ms,
        finite=bool(np.isfinite(errors).all()),
    )


def main() -> None:
    """Measure each clip, print, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clip", type=Path, action="append", help="besides the example's")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    store = ModelStore(vitascope_home())
    stamp = {
        "cores": available_cores(),
        "machine": platform.machine(),
        "load_1min": round(os.getloadavg()[0], 1),  # before this run adds its own
        "onnxruntime": ort.__version__,
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
    }
    rows: list[dict[str, Any]] = []
    for clip in [EXAMPLE, *(options.clip or [])]:
        rows += rvm_rows(store.pull("rvm"), clip) + selfie_rows(store.path("selfie"), clip)
        options.out.parent.mkdir(exist_ok=True)
        write_rows(options.out, [one | stamp for one in rows])


if __name__ == "__main__":
    main()
