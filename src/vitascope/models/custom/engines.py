"""A user's ONNX file in a job on the GPU: on the fastest engine that computes it rightly."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from vitascope.gpu.engines import Engine, OnnxRuntimeEngine, ShapeRange
from vitascope.gpu.engines.selection import Candidate, Chosen, GpuOptions, Opener, choose_engine, gpu_openers
from vitascope.gpu.engines.self_check import Arrays, Machine, host_runner
from vitascope.models.custom.custom import (
    LONGEST_SIDE,
    SIDE_MULTIPLE,
    TRIAL_REGION,
    Normalisation,
    PictureInput,
    open_custom_network,
    picture_input,
    require_file,
)
from vitascope.models.custom.decoders import NetworkKind
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import MattingNetwork

__all__ = ["choose_custom_network"]


def choose_custom_network(
    path: Path,
    options: GpuOptions,
    *,
    kind: NetworkKind,
    person_class: int | None = None,
    normalisation: Normalisation | None = None,
    threads: int = 0,
    wanted: str = "auto",
    most_pictures: int,
    model: str,
    machine: Machine,
    cache_dir: Path | None,
) -> Chosen[MattingNetwork]:
    """Open the user's file for a job on the GPU.

    Args:
        path: The ``.onnx`` file.
        options: How it shall run on the GPU.
        kind: What its outputs mean.
        person_class: See ``open_custom_network``.
        normalisation: See ``open_custom_network``.
        threads: Threads of ONNX Runtime on the CPU; 0 uses every core.
        wanted: ``tensorrt``, ``onnxruntime`` (on the GPU), ``processor`` or ``auto``.
        most_pictures: Most pictures of one call.
        model: The file's sha256.
        machine: What verdicts hold on.
        cache_dir: Where verdicts are kept; None checks anew each time.

    Returns:
        A network that takes CuPy pictures, and why its engine was taken; the caller closes it.

    Raises:
        ModelError: As ``open_custom_network``.
        EngineError: As ``choose_engine``.
    """
    require_file(path, kind)

    def on_cpu() -> Engine:
        return OnnxRuntimeEngine(path, threads=threads)

    def on_gpu(open_one: Opener) -> Engine:
        return open_one(path, profiles)

    def make_inputs() -> Arrays:
        shape = wanted_input.shape_for(1, wanted_input.size_for(TRIAL_REGION))
        normal = np.random.default_rng(0).standard_normal(shape)
        return {wanted_input.name: normal.astype(wanted_input.dtype)}

    with OnnxRuntimeEngine(path, threads=threads) as reference:
        wanted_input = picture_input(path, reference.spec.inputs)
        profiles = {wanted_input.name: _sizes(wanted_input, most_pictures)}
        candidates = [
            Candidate[Engine](
                name=name,
                precision=precision,
                open=partial(on_gpu, open_one),
                describe=lambda engine: engine.name,
                runner=host_runner,
            )
            for name, precision, open_one in gpu_openers(options)
        ]
        candidates.append(
            Candidate[Engine](
                name="processor",
                precision="fp32",
                open=on_cpu,
                describe=lambda engine: engine.name,
                runner=host_runner,
                is_reference=True,
            )
        )
        chosen = choose_engine(
            candidates,
            wanted=wanted,
            reference=host_runner(reference),
            make_inputs=make_inputs,
            model=model,
            machine=machine,
            cache_dir=cache_dir,
        )
    network: MattingNetwork = open_custom_network(
        path,
        kind=kind,
        person_class=person_class,
        normalisation=normalisation,
        open_engine=lambda _: chosen.engine,
    )
    if chosen.engine.spec.device == "cpu":
        network = HostNetwork(network)
    return Chosen(network, chosen.name, chosen.reasons)


def _sizes(wanted: PictureInput, most_pictures: int) -> ShapeRange:
    """What the input will meet: the size written in the file, or every size that ``size_for`` gives."""
    smallest = tuple(side or SIDE_MULTIPLE for side in wanted.fixed_size)
    largest = tuple(side or LONGEST_SIDE for side in wanted.fixed_size)
    most = most_pictures if wanted.free_batch else 1
    return ShapeRange(
        wanted.shape_for(1, (smallest[0], smallest[1])),
        wanted.shape_for(most, wanted.size_for(TRIAL_REGION)),
        wanted.shape_for(most, (largest[0], largest[1])),
    )
