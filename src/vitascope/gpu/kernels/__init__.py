"""Frame operations: each file has the contract and the NumPy/OpenCV reference, which is also the CPU path.

Pixel-centre convention everywhere: sample ``i`` of a row covers ``[i, i + 1)`` and its centre is ``i + 0.5``.
"""
