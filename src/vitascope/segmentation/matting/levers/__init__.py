"""Levers: estimators that run the network less often, on less of the picture, or more closely.

::

    Batch ──> CachedMattes ──> SkipStatic ──> EarlyExit ──> ShotInference | MissedOnTheWay | Bidirectional ──> mattes
                                                          | Cropped | Zoomed | MultiScale

Each is an ``Estimator``, present only if it is requested; those on the left are given the one on their right, and
ask it for fewer frames. ``chain`` builds what the options ask for. All work where the pictures are, on the CPU and on a
GPU; what is decided is decided on the host from a few hundred numbers.
"""
