"""Made-up grids of settings with a known truth, seeded, that behave like real runs."""

from __future__ import annotations

import itertools
import math
import random

from vitascope.tune.search import Knob, Limit, Measured

BATCHES = (1, 2, 4, 8, 16)
PRECISIONS = ("fp32", "mixed", "fp16")
SIDES = (None, 768, 512, 384)
SESSIONS = (1, 2, 4, 8)
QUEUES = (4, 16, 64)
ENCODERS = ("cpu", "nvenc")


class MadeUpGrid:
    """A simulated pipeline: decoder, network and encoder run in parallel, and the slowest sets the pace.

    It has plateaus (only the slowest counts), interactions (memory and latency grow with batch times side),
    cells that run out of memory, and a few percent of noise on measurements.
    """

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self._noise_of = random.Random(seed + 1)
        knobs = [
            Knob("batch", BATCHES),
            Knob("precision", PRECISIONS, ordered=False),
            Knob("side", SIDES),
            Knob("sessions", SESSIONS),
            Knob("queue", QUEUES),
            Knob("encoder", ENCODERS, ordered=False),
        ]
        # Two of the lesser knobs are missing in some grids, as real ones differ in what can be set.
        dropped = rng.sample(("queue", "encoder", "side"), rng.choice((0, 1)))
        self.knobs = [knob for knob in knobs if knob.key not in dropped]
        self._fixed = {"queue": 16, "encoder": "cpu", "side": None}
        self.network_ms = rng.uniform(2, 30)
        self.launch_ms = rng.uniform(0.2, 12)
        self.gain = {"fp32": 1.0, "mixed": rng.uniform(1.1, 1.7), "fp16": rng.uniform(1.2, 2.6)}
        self.decode_ms = rng.uniform(2, 20)
        self.contention = rng.uniform(0.02, 0.12)
        self.encode_ms = {"cpu": rng.uniform(2, 15), "nvenc": rng.uniform(2, 10)}
        self.queue_cost = rng.uniform(0, 0.3)
        self.frame_gb = rng.uniform(0.1, 1.2)
        self.session_gb = rng.uniform(0.1, 0.8)
        self.total_gb = rng.choice((6, 12, 24))
        self.noise = rng.choice((0.005, 0.015, 0.03))
        self.error = {"fp32": 0.0, "mixed": rng.uniform(0, 0.05), "fp16": rng.uniform(0, 0.3)}
        self.side_error = rng.uniform(0.3, 2.5)
        self.limits = [Limit("alpha_error", 1.5)]
        if rng.random() < 0.5:
            self.limits.append(Limit("vram_gb", 0.9 * self.total_gb))
        if rng.random() < 0.5:
            self.limits.append(Limit("latency_ms", rng.uniform(300, 1500)))

    @property
    def size(self) -> int:
        return math.prod(len(knob.values) for knob in self.knobs)

    def truth(self, values: dict) -> Measured:
        v = {**self._fixed, **values}
        area = ((v["side"] or 1024) / 1024) ** 1.7
        network = self.network_ms * area / self.gain[v["precision"]] + self.launch_ms / v["batch"]
        decode = self.decode_ms / v["sessions"] * (1 + self.contention * (v["sessions"] - 1) ** 1.3)
        slowest = max(network, decode, self.encode_ms[v["encoder"]])
        # Too short a queue starves large batches.
        starved = 1 + self.queue_cost * max(0.0, math.log2(2 * v["batch"] / v["queue"]))
        soft = (network**6 + decode**6 + self.encode_ms[v["encoder"]] ** 6) ** (1 / 6)
        frame_ms = (0.7 * slowest + 0.3 * soft) * starved
        half = 1.0 if v["precision"] == "fp32" else 0.6
        vram = 1 + self.frame_gb * v["batch"] * area * half + self.session_gb * v["sessions"]
        if vram > self.total_gb:
            return Measured(failure="out of memory")
        figures = {
            "latency_ms": frame_ms * (v["queue"] + 2 * v["batch"]),
            "vram_gb": vram,
            "alpha_error": self.error[v["precision"]] + self.side_error * (1 - area),
        }
        return Measured(1000 / frame_ms, figures)

    def measure(self, values: dict) -> Measured:
        truth = self.truth(values)
        if truth.failure:
            return truth
        luck = math.exp(self._noise_of.gauss(0, self.noise))
        figures = {**truth.figures, "latency_ms": truth.figures["latency_ms"] / luck}
        return Measured(truth.score * luck, figures)

    def keeps_limits(self, measured: Measured, *, slack: float = 0.0) -> bool:
        return measured.failure is None and all(
            measured.figures[limit.figure] <= limit.most * (1 + slack) for limit in self.limits
        )

    def optimum(self) -> float:
        every = itertools.product(*(knob.values for knob in self.knobs))
        truths = [self.truth(dict(zip([k.key for k in self.knobs], cell, strict=True))) for cell in every]
        return max((one.score for one in truths if self.keeps_limits(one)), default=0.0)
