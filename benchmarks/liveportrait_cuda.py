"""LivePortrait's networks for one frame (M, W, G) on a GPU, batch 1, random weights, beside the authors' modules.

Checked first: both Triton kernels against PyTorch's operators, and the FP16 networks against the published form in
FP32.

Predictions on one H200: W 171 and G 446 GMAC are 1.2 TFLOP, 2.5 ms at half of the tensor cores' dense rate; M is 5.8
GMAC in FP32, bound by its 150 launches, 0.5 ms in a graph. The authors' modules in FP16: 16 ms eager, 8 ms compiled.

Usage: python benchmarks/liveportrait_cuda.py [--peer FOLDER] [--out ROWS.json]; FOLDER holds LivePortrait's ``src``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from row_stamp import gpu_stamp, write_rows
from vitascope.gpu.engines.torch_engine import CapturedCall
from vitascope.models.liveportrait.fast import FastGenerator, FastWarping, TorchWarpOps
from vitascope.models.liveportrait.motion import MotionExtractor
from vitascope.models.liveportrait.published import AppearanceExtractor, SpadeGenerator, WarpingNetwork
from vitascope.models.liveportrait.warp_triton import TritonWarpOps

ROUNDS = 100


def randomised(network: nn.Module) -> Any:
    """Moments and gates as a trained network has them: not 0 and 1."""
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    for name, parameter in network.named_parameters():
        if "grn" in name:
            nn.init.normal_(parameter, 0, 0.2)
    return network.eval().requires_grad_(False).cuda()


def timed(call: Callable[[], object]) -> dict[str, float]:
    """Milliseconds of single calls, from an idle GPU to an idle GPU."""
    for _ in range(10):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) * 1e3)
    return {f"p{p}_ms": round(float(np.percentile(times, p)), 3) for p in (50, 95, 99)}


def relative(got: Tensor, wanted: Tensor) -> float:
    """Largest difference against the largest value."""
    return float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())


def captured(call: Callable[..., Any], inputs: Sequence[Tensor]) -> Callable[[], object]:
    """The call as a CUDA graph on these inputs."""
    graph = CapturedCall(lambda *given: _as_tuple(call(*given)), inputs)
    return lambda: graph(inputs)


def _as_tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def main() -> None:
    """Check, time, print and write rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path)
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rows: list[dict[str, Any]] = []
    stamp = gpu_stamp()

    def keep(**row: Any) -> None:
        rows.append({**row, **stamp})
        print(json.dumps(rows[-1]), flush=True)
        if wanted.out is not None:
            write_rows(wanted.out, rows)

    with torch.inference_mode():
        motion, warping = randomised(MotionExtractor()), randomised(WarpingNetwork())
        generator, appearance = randomised(SpadeGenerator()), randomised(AppearanceExtractor())
        picture = torch.rand(1, 3, 256, 256, device="cuda")
        source = torch.rand(1, 21, 3, device="cuda") - 0.5
        driving = source + torch.randn(1, 21, 3, device="cuda") * 0.1
        volume = appearance(picture)
        features = warping(volume, driving, source)
        painted = generator(features)
        half_volume = volume.half().contiguous(memory_format=torch.channels_last_3d)

        compressed = torch.rand(1, 4, 16, 64, 64, device="cuda").to(memory_format=torch.channels_last_3d)
        parts = torch.randn(1, 154, 16, 64, 64, device="cuda").to(memory_format=torch.channels_last_3d)
        plain, fused = TorchWarpOps(), TritonWarpOps()
        exact = {
            "candidates": relative(
                fused.candidates(compressed, driving, source, 112),
                plain.candidates(compressed, driving, source, 112),
            ),
            "bend": relative(
                fused.bend(volume, parts, driving, source), plain.bend(volume, parts, driving, source)
            ),
        }
        if max(exact.values()) > 1e-3:
            raise SystemExit(f"the kernels are wrong: {exact}")
        fast_w = FastWarping(warping, fused, dtype=torch.float16).cuda()
        fast_g = FastGenerator(generator, dtype=torch.float16).cuda()
        made = fast_w(half_volume, driving, source)
        keep(
            claim="error against the published form in FP32",
            kernels=exact,
            warping=relative(made, features),
            generator_max=float((fast_g(features.half()).float() - painted).abs().max()),
            both_max=float((fast_g(made).float() - painted).abs().max()),
        )

        def both(volume: Tensor, driving: Tensor, source: Tensor) -> Tensor:
            return fast_g(fast_w(volume, driving, source))

        inputs = (half_volume, driving, source)
        keep(claim="W+G", variant="ours, eager, graph", **timed(captured(both, inputs)))
        keep(claim="W", variant="ours, eager, graph", **timed(captured(fast_w, inputs)))
        keep(claim="G", variant="ours, eager, graph", **timed(captured(fast_g, (made,))))
        keep(claim="M", variant="ours, FP32, eager, graph", **timed(captured(motion, (picture,))))
        compiled = torch.compile(both, dynamic=False)
        keep(
            claim="W+G",
            variant="ours, compiled, graph",
            error=float((compiled(*inputs).float() - painted).abs().max()),
            **timed(captured(compiled, inputs)),
        )
        keep(
            claim="M",
            variant="ours, FP32, compiled, graph",
            **timed(captured(torch.compile(motion, dynamic=False), (picture,))),
        )
        if wanted.peer is not None:
            peers(wanted.peer, keep, picture, volume, driving, source)


def peers(
    folder: Path, keep: Callable[..., None], picture: Tensor, volume: Tensor, driving: Tensor, source: Tensor
) -> None:
    """The authors' modules as their pipeline calls them: autocast to FP16, then also compiled."""
    sys.path.insert(0, str(folder))
    import yaml
    from src.modules.motion_extractor import MotionExtractor as PeerMotion
    from src.modules.spade_generator import SPADEDecoder
    from src.modules.warping_network import WarpingNetwork as PeerWarping

    sizes = yaml.safe_load((folder / "src/config/models.yaml").read_text())["model_params"]
    m = randomised(PeerMotion(**sizes["motion_extractor_params"]))
    w = randomised(PeerWarping(**sizes["warping_module_params"]))
    g = randomised(SPADEDecoder(**sizes["spade_generator_params"]))

    def step(m: Any, w: Any, g: Any) -> Tensor:
        with torch.autocast("cuda", torch.float16):
            m(picture)
            made: Tensor = g(feature=w(volume, kp_source=source, kp_driving=driving)["out"])
        return made.float()

    keep(claim="M+W+G", variant="authors' modules, autocast FP16, eager", **timed(lambda: step(m, w, g)))
    torch._dynamo.reset()
    compiled = [torch.compile(one) for one in (w, g)]
    keep(
        claim="M+W+G",
        variant="authors' modules, W and G compiled (default)",
        **timed(lambda: step(m, *compiled)),
    )


if __name__ == "__main__":
    main()
