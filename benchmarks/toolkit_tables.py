"""Writes tables from rows: ``toolkit_tables.py [--check]``.

``docs/engines.md`` and ``docs/quantization.md`` get what a reader chooses by; ``benchmarks/results/quantization.md``
gets all.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from readme_figures import ROOT, between

RESULTS = ROOT / "benchmarks" / "results"
NETWORKS = {"rvm": "RVM", "selfie": "selfie"}
WAYS = {"operators": "PyTorch's operators", "fused": "fused kernels"}


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of one benchmark; none where it has not run."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else []


def deeplab_table() -> str:
    """DeepLabV3+ on a GPU: the batches that the guides have, and 8; compiled, or eager where nothing was compiled."""
    every = rows_of("deeplab_cuda")
    compiled = {row["precision"] for row in every if row["mode"] == "compile"}
    rows = [
        row
        for row in every
        if (row["mode"] == "compile" or row["precision"] not in compiled)
        and (row["rtx_3090_ms"] or row["batch"] == 8)
    ]
    if not rows:
        return "Not measured yet."
    lines = [
        "| precision | how | batch | p50 | pictures/s | pixels of the same class | the guide's RTX 3090 |",
        "|-|-|-|-|-|-|-|",
    ]
    precisions = list(dict.fromkeys(row["precision"] for row in every))
    for row in sorted(rows, key=lambda row: precisions.index(row["precision"])):
        theirs = f"{row['rtx_3090_ms']} ms" if row["rtx_3090_ms"] else ""
        lines.append(
            f"| {row['precision'].upper()} | {row['mode']} | {row['batch']} | {row['p50_ms']:.2f} ms "
            f"| {row['throughput_fps']:.0f} | {row['argmax_agreement']:.2%} | {theirs} |"
        )
    lines += [
        "",
        f"One {rows[0]['gpu']}, PyTorch {rows[0]['torch']}, measured on {states_of(rows)}.",
    ]
    return "\n".join(lines)


def states_of(rows: list[dict[str, Any]]) -> str:
    """Dates and commits of rows that one table shows."""
    return " and ".join(dict.fromkeys(f"{row['date']} (commit {row['commit']})" for row in rows))


def cpu_table() -> str:
    """RVM and selfie on the CPU."""
    rows = rows_of("quantization")
    if not rows:
        return "Not measured yet."
    clips = list(dict.fromkeys(row["clip"] for row in rows))
    lines = [
        f"| network | | INT8 weights | all weights | {' | '.join(clips)} |",
        "|-|-|-|-|" + "-|" * len(clips),
    ]
    by_claim: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_claim.setdefault(row["claim"], {})[row["clip"]] = row
    for claim, found in by_claim.items():
        _, network, variant = claim.split(" ", 2)
        if variant == "fp32":
            continue
        one = found[clips[0]]
        ratio = "" if one["int8_weights_ratio"] is None else f"{one['int8_weights_ratio']:.1f}x smaller"
        shown = variant.replace("fp16", "FP16").replace("int8", "INT8")
        cells = [
            f"{row['alpha_error_255']:.2f} ({row['worst_frame_255']:.2f}), {row['speedup']:.2f}x, "
            f"{'accepted' if row['gate'] == 'accepted' else 'refused'}"
            for row in (found[clip] for clip in clips)
        ]
        lines.append(
            f"| {NETWORKS[network]} | {shown} | {ratio} | {one['size_ratio']:.1f}x smaller | {' | '.join(cells)} |"
        )
    first = rows[0]
    lines += [
        "",
        f"{first['cores']} cores ({first['machine']}), ONNX Runtime {first['onnxruntime']}, {first['date']}, commit "
        f"{first['commit']}; RVM at 512x288 with its recurrent state, selfie at 256x256. Variants and FP32 took "
        "turns" + (", while the machine did other work." if first["load_1min"] > 1 else "."),
    ]
    return "\n".join(lines)


def gpu_table() -> str:
    """RVM on a GPU."""
    rows = rows_of("quantization_cuda")
    if not rows:
        return "Not measured yet."
    lines = [
        "| how | precision | alpha error | a call of 1 frame | of 16 frames | speed against FP32, 16 frames |",
        "|-|-|-|-|-|-|",
    ]
    by_claim: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_claim.setdefault(row["claim"].removeprefix("quantization rvm "), {})[row["frames"]] = row
    fp32 = by_claim["operators fp32"][16]["ms_p50"]
    for claim, calls in by_claim.items():
        one = calls[1]
        how, precision = claim.split(" ", 1)
        many = f"{calls[16]['ms_p50']:.2f} ms" if 16 in calls else ""
        speed = f"{fp32 / calls[16]['ms_p50']:.2f}x" if 16 in calls else ""
        shown = precision if precision.startswith("mixed") else precision[:4].upper() + precision[4:]
        lines.append(
            f"| {WAYS[how]} | {shown} | {one['alpha_error_255']:.3f} ({one['worst_frame_255']:.3f}) "
            f"| {one['ms_p50']:.2f} ms | {many} | {speed} |"
        )
    first = rows[0]
    lines += [
        "",
        f"One {first['gpu']}, PyTorch {first['torch']}, measured on {states_of(rows)}; {first['clip']}, medians.",
    ]
    return "\n".join(lines)


def glance_table() -> str:
    """Both networks on both devices, on the first clip: size, error and time."""
    cpu = {row["claim"]: row for row in reversed(rows_of("quantization"))}
    gpu = {row["claim"]: row for row in rows_of("quantization_cuda") if row["frames"] == 1}
    if not cpu or not gpu:
        return "Not measured yet."
    lines = [
        "| network | | weights | CPU: alpha error, speed against FP32 | GPU: alpha error, speed against FP32 |",
        "|-|-|-|-|-|",
    ]
    exact = gpu["quantization rvm operators fp32"]
    for network, name in NETWORKS.items():
        for variant, shown in (("fp32", "FP32"), ("fp16", "FP16"), ("int8 percentile", "INT8")):
            row = cpu[f"quantization {network} {variant}"]
            there = "runs on the CPU"
            if network == "rvm":
                found = gpu[f"quantization rvm operators {variant}"]
                there = f"{found['alpha_error_255']:.2f}, {exact['ms_p50'] / found['ms_p50']:.2f}x"
            weights = f"{row['weights_mb']:.2f} MB"
            if row["int8_weights_ratio"] is not None:
                weights += f"; those in 8 bits {row['int8_weights_ratio']:.1f}x smaller"
            speed = 1.0 if variant == "fp32" else row["speedup"]
            lines.append(
                f"| {name} | {shown} | {weights} | {row['alpha_error_255']:.2f}, {speed:.2f}x | {there} |"
            )
    return "\n".join(lines)


def main() -> int:
    """Write the tables, or compare them with ``--check``."""
    stale = []
    for name, tables in {
        "docs/engines.md": {"deeplab": deeplab_table},
        "docs/quantization.md": {"quantization-glance": glance_table},
        "benchmarks/results/quantization.md": {"quantization": cpu_table, "quantization-gpu": gpu_table},
    }.items():
        path: Path = ROOT / name
        page = wanted = path.read_text(encoding="utf-8")
        for mark, table in tables.items():
            wanted = between(wanted, f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->", table())
        if page != wanted:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(wanted, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.stderr.write(f"{', '.join(stale)} do not show the rows; run `make docs`\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
