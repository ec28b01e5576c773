"""Batching: combines requests from many clients into one call of a network, and finds the best batch size.

::

    submit ──> WaitingRoom ──> worker ──> inference_fn ──> Reply       Batcher; one room, one kind of worker
               who goes next   a stream of its own             or Future, of submit_async
    DynamicBatcher    one line                PriorityBatcher    levels
    StreamBatcher     several workers         AdaptiveBatchSizer, BatchSizeOptimizer    how many go together

Consecutive frames of one video need none of this: ``gpu.pipeline.Batched`` groups them.
"""
