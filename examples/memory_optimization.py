"""How much memory is there, a network of half the size, and batches that fit.

Usage: python examples/memory_optimization.py [--device cpu] [--epochs 5]
"""

from __future__ import annotations

import argparse
from typing import Literal

from small_network import make_model
from vitascope.gpu import AdaptiveBatchSizer, ModelQuantizer, VRAMMonitor


def main(*, device: Literal["auto", "cuda", "cpu"] = "auto", epochs: int = 5) -> tuple[float, list[int]]:
    """Look, shrink, adapt; how many times smaller the network is, and the batch sizes."""
    model = make_model()

    # Monitor VRAM (the machine's memory where there is no GPU)
    monitor = VRAMMonitor(device_id=0, device=device)
    stats = monitor.get_stats()
    print(f"VRAM: {stats.allocated_vram_gb:.2f}/{stats.total_vram_gb:.2f} GB")

    # Quantize model
    model_fp16 = ModelQuantizer.quantize_fp16(model)
    size_reduction = ModelQuantizer.measure_model_size(model) / ModelQuantizer.measure_model_size(model_fp16)
    print(f"Model size reduction: {size_reduction:.1f}x")

    # Adaptive batching
    batch_sizer = AdaptiveBatchSizer(
        initial_batch_size=4,
        target_utilization=0.85,
        monitor=monitor,
    )
    sizes = []
    for _ in range(epochs):
        batch_size = batch_sizer.adjust_batch_size()
        sizes.append(batch_size)
        # Use batch_size...
    print(f"Batch sizes: {sizes}")
    monitor.close()
    return size_reduction, sizes


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    main(device=options.device, epochs=options.epochs)
