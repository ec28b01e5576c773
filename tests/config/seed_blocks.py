"""Every YAML block of the five guides that the product was ordered with, and what it must set."""

from __future__ import annotations

from typing import Any, NamedTuple

from vitascope.config import BatchRange


class SeedBlock(NamedTuple):
    title: str
    text: str
    expected: dict[str, Any]


def _resolution(title: str, batch: BatchRange, target_fps: int) -> SeedBlock:
    text = f"""
model:
  batch_size: {batch}
  input_size: [1024, 1024]
gpu:
  precision: fp16
performance:
  target_fps: {target_fps}
"""
    expected = {
        "model.batch_size": batch,
        "model.input_size": (1024, 1024),
        "gpu.precision": "fp16",
        "performance.target_fps": target_fps,
    }
    return SeedBlock(title, text, expected)


SEED_BLOCKS = [
    SeedBlock(
        "gpu module: key settings",
        """
# Key settings
tensorrt:
  precision:
    fp16: true  # 2x speedup
    int8: false # 4x speedup (requires calibration)

batching:
  dynamic:
    max_batch_size: 8
    timeout_ms: 50

pipeline:
  stages:
    decode:
      threads: 8
    preprocess:
      cuda_streams: 4
    inference:
      batch_size: 4
    postprocess:
      threads: 16
""",
        {
            "tensorrt.precision.fp16": True,
            "tensorrt.precision.int8": False,
            "batching.dynamic.max_batch_size": 8,
            "batching.dynamic.timeout_ms": 50,
            "pipeline.stages.decode.threads": 8,
            "pipeline.stages.preprocess.cuda_streams": 4,
            "pipeline.stages.inference.batch_size": BatchRange(4, 4),
            "pipeline.stages.postprocess.threads": 16,
        },
    ),
    SeedBlock(
        "optimization: mixed precision",
        """
gpu:
  precision: fp16
  allow_tf32: true  # Additional speedup on Ampere
""",
        {"gpu.precision": "fp16", "gpu.allow_tf32": True},
    ),
    SeedBlock(
        "optimization: multi-threading",
        """
processing:
  num_threads: 64  # Use 50% of 128 threads
  use_multiprocessing: true
""",
        {"processing.num_threads": 64, "processing.use_multiprocessing": True},
    ),
    SeedBlock(
        "optimization: prefetching",
        """
model:
  prefetch_factor: 4  # Prefetch 4 batches ahead
""",
        {"model.prefetch_factor": 4},
    ),
    SeedBlock(
        "optimization: queue management",
        """
processing:
  max_queue_size: 100  # Balance memory and smoothness

  # Rule of thumb:
  # queue_size = target_fps * latency_tolerance_seconds
  # Example: 90 FPS * 1s = 90 frames
""",
        {"processing.max_queue_size": 100},
    ),
    SeedBlock(
        "tuning: precision mode",
        """
gpu:
  precision: fp16  # fp32, fp16, int8, mixed
""",
        {"gpu.precision": "fp16"},
    ),
    SeedBlock(
        "tuning: VRAM",
        """
gpu:
  max_vram_usage: 0.9  # Use 90% of VRAM
  memory_fraction: null  # Alternative: set exact fraction
""",
        {"gpu.max_vram_usage": 0.9, "gpu.memory_fraction": None},
    ),
    SeedBlock(
        "tuning: cuDNN",
        """
gpu:
  cudnn_benchmark: true  # Auto-tune convolution algorithms
  cudnn_deterministic: false  # Faster but non-deterministic
  allow_tf32: true  # Enable TF32 on Ampere GPUs
""",
        {"gpu.cudnn_benchmark": True, "gpu.cudnn_deterministic": False, "gpu.allow_tf32": True},
    ),
    SeedBlock(
        "tuning: batch size",
        """
model:
  batch_size: 8  # Process N frames in parallel
""",
        {"model.batch_size": BatchRange(8, 8)},
    ),
    SeedBlock(
        "tuning: input resolution",
        """
model:
  input_size: [1024, 1024]  # Model input resolution
""",
        {"model.input_size": (1024, 1024)},
    ),
    SeedBlock(
        "tuning: data loading",
        """
model:
  num_workers: 4  # CPU workers for data loading
  prefetch_factor: 2  # Frames to prefetch per worker
""",
        {"model.num_workers": 4, "model.prefetch_factor": 2},
    ),
    SeedBlock(
        "tuning: CPU threading",
        """
processing:
  num_threads: 32  # CPU threads for preprocessing
  use_multiprocessing: true  # Use process pool
""",
        {"processing.num_threads": 32, "processing.use_multiprocessing": True},
    ),
    SeedBlock(
        "tuning: queues",
        """
processing:
  max_queue_size: 100  # Frame buffer size
  chunk_size: 100  # Process in chunks
""",
        {"processing.max_queue_size": 100, "processing.chunk_size": 100},
    ),
    SeedBlock(
        "tuning: caching",
        """
processing:
  enable_caching: true
  cache_size_gb: 4.0
""",
        {"processing.enable_caching": True, "processing.cache_size_gb": 4.0},
    ),
    SeedBlock(
        "tuning: performance targets",
        """
performance:
  target_fps: 90  # VR target
  max_latency_ms: 50.0  # Maximum per-frame latency
  auto_tune: true  # Automatic optimization
""",
        {"performance.target_fps": 90, "performance.max_latency_ms": 50.0, "performance.auto_tune": True},
    ),
    SeedBlock(
        "tuning: low GPU utilization",
        """
model:
  batch_size: 16  # Increase from 8
  num_workers: 8  # Increase workers
""",
        {"model.batch_size": BatchRange(16, 16), "model.num_workers": 8},
    ),
    SeedBlock(
        "tuning: high memory usage",
        """
model:
  batch_size: 4  # Reduce from 8
gpu:
  max_vram_usage: 0.85  # More conservative
""",
        {"model.batch_size": BatchRange(4, 4), "gpu.max_vram_usage": 0.85},
    ),
    SeedBlock(
        "tuning: high CPU usage",
        """
model:
  num_workers: 4  # Reduce from 8
processing:
  num_threads: 16  # Reduce from 32
""",
        {"model.num_workers": 4, "processing.num_threads": 16},
    ),
    SeedBlock(
        "tuning: high latency",
        """
gpu:
  precision: fp16  # Switch from fp32
model:
  batch_size: 4  # Reduce for lower latency
""",
        {"gpu.precision": "fp16", "model.batch_size": BatchRange(4, 4)},
    ),
    _resolution("tuning: 1080p", BatchRange(16, 32), 120),
    _resolution("tuning: 4K", BatchRange(8, 16), 90),
    _resolution("tuning: 6K", BatchRange(4, 8), 60),
    _resolution("tuning: 8K", BatchRange(2, 4), 30),
    SeedBlock(
        "tuning: pinned memory",
        """
# Custom dataloader settings
dataloader:
  pin_memory: true
  persistent_workers: true
""",
        {"dataloader.pin_memory": True, "dataloader.persistent_workers": True},
    ),
    SeedBlock(
        "animator: recommended settings",
        """
animation:
  gpu_id: 0
  batch_size: 4
  inference_precision: fp16
  use_half_precision: true
  enable_tensorrt: false  # Enable after TensorRT conversion

performance:
  target_fps: 65
  max_latency_ms: 15
  frame_skip_enabled: true
  frame_skip_threshold: 0.92
  prefetch_frames: 3
  gpu_memory_fraction: 0.85
  clear_cache_interval: 200
""",
        {
            "animation.gpu_id": 0,
            "animation.batch_size": BatchRange(4, 4),
            "animation.inference_precision": "fp16",
            "animation.use_half_precision": True,
            "animation.enable_tensorrt": False,
            "performance.target_fps": 65,
            "performance.max_latency_ms": 15,
            "performance.frame_skip_enabled": True,
            "performance.frame_skip_threshold": 0.92,
            "performance.prefetch_frames": 3,
            "performance.gpu_memory_fraction": 0.85,
            "performance.clear_cache_interval": 200,
        },
    ),
    SeedBlock(
        "animator: FP16",
        """
animation:
  use_half_precision: true
  inference_precision: fp16
""",
        {"animation.use_half_precision": True, "animation.inference_precision": "fp16"},
    ),
    SeedBlock(
        "animator: memory fraction",
        """
   performance:
     gpu_memory_fraction: 0.85  # Use 85% of VRAM
""",
        {"performance.gpu_memory_fraction": 0.85},
    ),
    SeedBlock(
        "animator: cache clearing",
        """
   performance:
     clear_cache_interval: 200  # Clear cache every 200 frames
""",
        {"performance.clear_cache_interval": 200},
    ),
    SeedBlock(
        "animator: TensorRT",
        """
animation:
  enable_tensorrt: true
""",
        {"animation.enable_tensorrt": True},
    ),
    SeedBlock(
        "animator: profiling",
        """
debug:
  profile_performance: true
""",
        {"debug.profile_performance": True},
    ),
    SeedBlock(
        "animator: async capture",
        """
   performance:
     use_async_capture: true
     use_async_output: true
""",
        {"performance.use_async_capture": True, "performance.use_async_output": True},
    ),
    SeedBlock(
        "animator: MediaPipe",
        """
   tracking:
     max_num_faces: 1  # Track only one face
     refine_landmarks: false  # Disable if not needed
""",
        {"tracking.max_num_faces": 1, "tracking.refine_landmarks": False},
    ),
    SeedBlock(
        "animator: tracking smoothing",
        """
   tracking:
     smoothing_window: 3  # Lower = less CPU usage
""",
        {"tracking.smoothing_window": 3},
    ),
]
