"""Ways to look less often, at less, or more closely: what stands between prepared pictures and the network's answers.

::

    Pictures ──> SkipStatic ──> EarlyExit ──> Whole | Cropped | Zoomed | MultiScale ──> [MatteEstimate]

Each is an ``Estimator``; those on the left are given the one on their right, and ask it for fewer frames. ``chain``
builds what the options ask for. All work where the pictures are, on the processor and on a GPU; what is decided is
decided on the host from a few hundred numbers.
"""
