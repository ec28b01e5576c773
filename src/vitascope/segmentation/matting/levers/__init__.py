"""Levers: estimators that run the network less often, on less of the picture, or more closely.

::

    Batch ──> CachedMattes ──> SkipStatic ──> EarlyExit ──> ShotInference | MissedOnTheWay | Bidirectional ──> mattes
                                                          | Cropped | Zoomed | MultiScale

Each is an ``Estimator``, present only if it is requested; each wraps the one on its right, and asks it for fewer
frames. ``chain`` builds them from the options. All compute where the pictures are, on the CPU or on a GPU; decisions
are made on the host from a few hundred numbers.
"""
