"""Writes the README's figures from the rows: ``python benchmarks/readme_figures.py [--check]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
ROWS = ROOT / "benchmarks" / "results" / "segment_cpu.json"
BEGIN, END = "<!-- figures:begin -->", "<!-- figures:end -->"
GPU_BEGIN, GPU_END = "<!-- gpu-figures:begin -->", "<!-- gpu-figures:end -->"
LIMITS = {
    "encode_bound": "",
    "decode_bound": " (decoding)",
    "gpu_bound": " (the GPU)",
    "cpu_bound": " (the CPU)",
}
"""Describe what limits a cell of the suite, for the table."""
RESULTS = ROOT / "benchmarks" / "results"
NAMES = {
    "rvm": "`--model rvm`, downsample ratio 0.25, against the official RVM graph",
    "fast": "`--profile fast`, against the same selfie network used as MediaPipe's example does",
}


def table() -> str:
    """The figures as Markdown."""
    rows = {row["claim"]: row for row in json.loads(ROWS.read_text())}
    lines = ["| | Vitascope | plain loop | ratio (worst round) |", "|---|---|---|---|"]
    for claim, name in NAMES.items():
        row = rows[claim]
        lines.append(
            f"| {name} | {row['vitascope_fps']:.1f} fps | {row['plain_loop_fps']:.1f} fps "
            f"| {row['ratio']:.2f} ({row['ratio_min']:.2f}) |"
        )
    memory, startup, first = rows["memory"], rows["startup"], rows["rvm"]
    dates = [row["date"] for row in (memory, startup, first)]
    commits = dict.fromkeys(rows[claim]["commit"] for claim in (*NAMES, "memory", "startup"))
    lines += [
        "",
        f"A 1080p video ten times as long changes the memory by {memory['rvm_growth_mb']:+d} MB with `rvm` "
        f"({memory['rvm_peak_mb_10_s']} MB for 10 s) and {memory['fast_growth_mb']:+d} MB with `fast` "
        f"({memory['fast_peak_mb_10_s']} MB). From a cold start to the first 1080p frame and its alpha: "
        f"{startup['fast_first_frame_seconds']:.1f} s with `fast`, {startup['rvm_first_frame_seconds']:.1f} s with "
        f"`rvm` at a quarter of the size, {startup['default_first_frame_seconds']:.1f} s by default. "
        f"Measured {' to '.join(sorted(set(dates)))} on {first['cores']} cores "
        f"({first['machine']}), ONNX Runtime {first['onnxruntime']}, "
        f"commits {', '.join(commits)}.",
    ]
    return "\n".join(lines)


def read_rows(name: str) -> list[dict[str, Any]]:
    """The rows of one benchmark."""
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())
    return rows


def gpu_table() -> str:
    """The GPU's figures as Markdown."""
    films = {row["claim"]: row for row in read_rows("segment_cuda")}
    network = {
        (row["claim"], row["frames"], row["size"]): row for row in read_rows("rvm_cuda") if row["eyes"] == 1
    }
    composite = next(
        row for row in read_rows("composite_cuda") if row["claim"] == "composite 8K nv12 key worst 512x288"
    )
    portrait = {(row["claim"], row.get("variant")): row for row in read_rows("liveportrait")}
    ours = sum(
        portrait[claim, variant]["p50_ms"]
        for claim, variant in (("M", "ours, FP32, compiled, graph"), ("W+G", "ours, compiled, graph"))
    )
    drawn = portrait["W+G", "ours, compiled, graph"]
    mesh = {row["claim"]: row for row in read_rows("animate_mesh_cuda")}
    batched = {row["claim"]: row for row in read_rows("batching")}
    headset = films["VR180 8192x4096 to packed alpha, h264"]
    prepare = next(row for row in read_rows("preprocess_cuda") if row["claim"] == "preprocess 8K")
    step, live = (
        films["network and both kernels, 1080p, batch 1"],
        films["packet in to composited frame, 4K, batch 1"],
    )
    sixteen = network["rvm fused fp16", 16, "512x288"]
    long = next(row for claim, row in films.items() if claim.endswith("0 frames"))
    shared = {
        (kind, count): row
        for row in read_rows("gpu_processes_cuda")
        for kind in ("mask", "key")
        for count in (1, 2, 3)
        if row["claim"] == f"file to {kind} 1080p, processes on one GPU: {count}"
    }
    decoders = " / ".join(
        f"{films[f'file to mask {size}']['decoder_alone_fps']:.0f}" for size in ("1080p", "4K", "8K")
    )
    suite = {row["claim"]: row for row in read_rows("suite_h200")}
    usual = [
        suite[f"suite --only resolution: {size} key, batch 4, fp16"] for size in ("1080p", "4K", "6K", "8K")
    ]
    speeds = ", ".join(f"{row['resolution']} {row['fps']:.0f}{LIMITS[row['limited_by']]}" for row in usual)
    lines = [
        "| | measured |",
        "|---|---|",
        *(
            f"| HEVC {name} to mask, one job | {films[claim]['fps']:.0f} fps, "
            f"{films[claim]['share_of_decoder']:.0%} of the decoder alone; without start and end "
            f"{films[claim]['pipeline_fps']:.0f} |"
            for name, claim in (
                ("1080p", "file to mask 1080p"),
                ("4K", "file to mask 4K"),
                ("8K, 4 decoder sessions", "file to mask 8K, 4 decoder sessions"),
            )
            if claim in films
        ),
        *(
            f"| HEVC {name} to key colour, one job | {row['fps']:.0f} fps, {row['share_of_slowest_stage']:.0%} of the "
            f"{slowest(row)} alone; RobustVideoMatting's own converter {row['peer_fps']:.0f} "
            f"({row['ratio_to_peer']:.0f} times) |"
            for name in ("1080p", "4K")
            for row in [films[f"file to key {name}"]]
        ),
        *(
            f"| HEVC 1080p, two processes on the GPU (`--gpu-ids 0,0`), to {name} | {row['fps']:.0f} fps, "
            f"{row['share_of_slowest_stage']:.0%} of the encoders alone; one process in the same run {one['fps']:.0f} |"
            for name, kind in (("mask", "mask"), ("key colour", "key"))
            for one, row in [[shared[kind, 1], shared[kind, 2]]]
        ),
        f"| VR180, HEVC 8192x4096, to packed alpha{on(headset)} | {headset['fps']:.0f} fps, "
        f"{headset['share_of_slowest_stage']:.0%} of the {slowest(headset)} alone |",
        f"| decoder alone, 1080p / 4K / 8K | {decoders} fps |",
        f"| `vitascope bench run`, balanced (x264 `veryfast`, network at {usual[0]['network_size'][1]}x"
        f"{usual[0]['network_size'][0]}), synthetic videos to key colour | "
        f"{speeds} fps; unless noted, encoding on {usual[0]['cores']} cores is the limit |",
        f"| {long['frames']:,} frames of one video | the GPU's memory in use: {long['used_mib_every_1000'][3]} MiB "
        f"after 4,000, {long['used_mib_every_1000'][-1]} at the end |",
        "| 1080p frame through both kernels and the network at 512x288, one at a time "
        f"| {step['p50_ms']:.2f} ms p50, {step['p99_ms']:.2f} p99; RobustVideoMatting's own FP16 network alone, "
        f"scripted: {step['peer_p50_ms']:.2f} ms ({step['ratio_to_peer']:.1f} times) |",
        f"| 4K packet in to composited frame, one at a time | {live['p50_ms']:.1f} ms p50, {live['p95_ms']:.1f} p95, "
        f"{live['p99_ms']:.1f} p99 |",
        f"| network alone, 16 frames of 512x288, FP16{on(sixteen)} | {sixteen['ms_p50']:.1f} ms, "
        f"{sixteen['pictures_per_s']} frames/s |",
        f"| preprocess kernel, 8K to 512x512{on(prepare)} | {prepare['vitascope']['p50_us']:.0f} µs; PyTorch's "
        f"operators {prepare['ratio_eager']:.0f} times that, compiled {prepare['ratio_compile']:.0f} |",
        f"| composite kernel, 8K, alpha partial everywhere | {composite['vitascope']['p50_us']:.0f} µs, "
        f"{composite['share_of_copy_bandwidth']:.0%} of copy bandwidth |",
        f"| LivePortrait's networks for one picture, random weights, FP16 but for motion{on(drawn)} | {ours:.1f} ms |",
        *(
            f"| portrait mesh, {lines} lines, drawn and left on the GPU{on(row)} | {row['fps']:.0f} pictures/s; "
            f"{row['latency_ms']['p99']:.1f} ms p99 from motion to picture |"
            for lines in (1080, 2160)
            for row in [mesh[f"mesh animator on a GPU, {lines} lines"]]
        ),
        *(
            f"| {name}, 16 streams, dynamic batching, two batches in flight{on(row)} | "
            f"{row['pictures_per_s']:.0f} pictures/s, {row['against_graphs']:.1f} times one by one with CUDA graphs; "
            f"{row['p95_ms']:.1f} ms p95 |"
            for name, row in (
                ("RobustVideoMatting at 512x288", batched["batching rvm coarse 512x288 fp16 two in flight"]),
                ("DeepLabV3+ at 512x512", batched["batching deeplabv3+ resnet50 512x512 fp16 two in flight"]),
            )
        ),
        "",
        f"Measured {days([*films.values(), *shared.values(), prepare, composite, sixteen, drawn, *usual])} on one "
        f"{step['gpu']}, or on an H100 where noted, with 16 CPU cores, PyTorch {step['torch']}; the rows, and the "
        "commit of each, are in `benchmarks/results/`. Videos: including the time to open and close files, with a "
        "network that is warm; "
        "it sees 512x288, masks are at most 2048 wide, x264 on the CPU (preset ultrafast; this chip has no "
        "NVENC).",
    ]
    return "\n".join(lines)


def on(row: dict[str, Any]) -> str:
    """Describe a row that was measured on another GPU than most, or under other conditions."""
    if "H200" in row["gpu"]:
        return ""
    beside = f", {row['cores']} cores, other work running" if "beside" in row else ""
    return f" ({row['gpu'].split()[1]}{beside})"


def days(rows: list[dict[str, Any]]) -> str:
    """Describe when rows were measured."""
    first, last = min(row["date"] for row in rows), max(row["date"] for row in rows)
    return first if first == last else f"{first} to {last}"


def slowest(row: dict[str, Any]) -> str:
    """Name the slower of decoder and encoders, each measured alone."""
    return "decoder" if row["decoder_alone_fps"] < row["encoder_alone_fps"] else "encoders"


def between(page: str, begin: str, end: str, text: str) -> str:
    """Replace the text between two marks of the page."""
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{text}\n{end}{tail}"


def main() -> int:
    """Write the figures, or compare them with ``--check``."""
    page = README.read_text()
    wanted = between(between(page, BEGIN, END, table()), GPU_BEGIN, GPU_END, gpu_table())
    if "--check" in sys.argv:
        if page != wanted:
            sys.stderr.write("README.md does not show the rows; run `make docs`\n")
            return 1
        return 0
    README.write_text(wanted)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
