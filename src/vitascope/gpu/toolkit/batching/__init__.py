"""Batching: combine many clients' requests into one call of a network, and choose how large that call is.

::

    submit ──> WaitingRoom ──> worker ──> inference_fn ──> Reply       Batcher; one room, one kind of worker
               who goes next   a stream of its own             or Future, of submit_async
    DynamicBatcher    one line                PriorityBatcher    levels
    StreamBatcher     several workers         AdaptiveBatchSizer, BatchSizeOptimizer    how many go together

Consecutive frames of one video do not need this: ``gpu.pipeline.Batched`` groups them.
"""
