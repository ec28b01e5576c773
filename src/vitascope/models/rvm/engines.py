"""The engines that can run RobustVideoMatting's ONNX file in a job on the GPU, the fastest first."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from vitascope.gpu.engines import Engine, ShapeRange
from vitascope.gpu.engines.selection import Candidate, GpuOptions, Opener, gpu_openers
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import MattingNetwork
from vitascope.models.network_check import CHECK_STEPS, network_runner
from vitascope.models.rvm.graph import engine_profiles
from vitascope.models.rvm.rvm import RvmEngines, RvmNetwork

__all__ = ["rvm_candidates"]

# Sizes that TensorRT builds for; it refuses others. The usual one is a 16:9 picture, the largest a square eye of VR.
_SMALLEST_SIDE, _USUAL_SIZE, _LARGEST_SIDE = 16, (288, 512), 1024


def rvm_candidates(
    open_network: Callable[[RvmEngines | None], RvmNetwork],
    options: GpuOptions,
    *,
    most_frames: int,
    most_eyes: int = 2,
) -> list[Candidate[MattingNetwork]]:
    """Ways to run the network, called ``tensorrt``, ``onnxruntime`` and, last and always there, ``processor``.

    Args:
        open_network: Opens the network on the engines it is given, or on the CPU for None.
        options: How it shall run on the GPU.
        most_frames: Most frames of one call.
        most_eyes: Most pictures of one frame.
    """
    height, width = _USUAL_SIZE
    usual = most_frames * most_eyes
    pictures = ShapeRange(
        (1, 3, _SMALLEST_SIDE, _SMALLEST_SIDE),
        (usual, 3, height, width),
        (max(usual, CHECK_STEPS), 3, _LARGEST_SIDE, _LARGEST_SIDE),
    )

    def both_parts(open_one: Opener, encoder: bytes, decoder: bytes) -> tuple[Engine, Engine]:
        of_encoder, of_decoder = engine_profiles(encoder, decoder, pictures, most_eyes=most_eyes)
        first = open_one(encoder, of_encoder)
        try:
            return first, open_one(decoder, of_decoder)
        except BaseException:
            first.close()
            raise

    def on_gpu(open_one: Opener) -> RvmNetwork:
        return open_network(partial(both_parts, open_one))

    return [
        *(
            Candidate[MattingNetwork](
                name=name,
                precision=precision,
                open=partial(on_gpu, open_one),
                describe=lambda network: network.engine_name,
                runner=partial(network_runner, on_gpu=True),
            )
            for name, precision, open_one in gpu_openers(options)
        ),
        Candidate[MattingNetwork](
            name="processor",
            precision="fp32",
            open=lambda: HostNetwork(open_network(None)),
            describe=lambda network: network.engine_name,
            runner=partial(network_runner, on_gpu=True),
            is_reference=True,
        ),
    ]
