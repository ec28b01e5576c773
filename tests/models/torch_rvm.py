"""The coarse network in plain PyTorch as a matting network: a candidate to check engines with."""

from __future__ import annotations

import torch

from vitascope.models.network import MatteEstimate
from vitascope.models.rvm.state import RvmInput
from vitascope.models.rvm.structure import state_shapes
from vitascope.models.rvm.torch_network import RvmCoarseNetwork
from vitascope.models.rvm.weights import load_rvm_weights


class TorchRvm:
    name, recurrent = "rvm", True

    def __init__(self, path, *, precision, forgets=False):
        self.weights = load_rvm_weights(path)
        self.module = RvmCoarseNetwork(self.weights, precision=precision).cuda().eval()
        self.dtype = "float32" if precision == "fp32" else "float16"
        self.forgets, self.calls = forgets, 0

    @property
    def engine_name(self):
        return f"torch {torch.__version__} ({self.dtype})"

    def input_for(self, region_size):
        return RvmInput(downsample_ratio=1.0).input_for(region_size, dtype=self.dtype)

    def new_state(self):
        return []

    @torch.inference_mode()
    def infer(self, images, state):
        import cupy

        self.calls += 1
        stream = torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr)
        with torch.cuda.stream(stream):
            pictures = torch.from_dlpack(images)
            estimates = []
            for step in pictures:
                if not state or self.forgets:
                    shapes = state_shapes(self.weights, len(step), tuple(step.shape[2:]))
                    state[:] = [torch.zeros(shape, device="cuda") for shape in shapes]
                gain, offset, *state[:] = self.module(step[None], *state)
                estimates.append(
                    MatteEstimate(
                        gain=cupy.from_dlpack(gain[0].float().contiguous()),
                        offset=cupy.from_dlpack(offset[0].float().contiguous()),
                    )
                )
        return estimates

    def close(self):
        pass
