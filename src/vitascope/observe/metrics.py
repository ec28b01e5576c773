"""Figures of running jobs for Prometheus: read when they are asked for, never pushed by the work itself.

The metrics and their labels are in ``metric_families.py``; the text format is that of ``prometheus-client``
(https://prometheus.io/docs/instrumenting/exposition_formats/).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from vitascope.errors import MissingDependencyError
from vitascope.observe.job_counts import GpuLook, JobCounts, LiveRun
from vitascope.observe.metric_families import FAMILIES, Family
from vitascope.observe.readings import BUCKET_BOUNDS_SECONDS, Readings

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["Metrics", "live_metrics"]


class Metrics(JobCounts):
    """What ``JobCounts`` knows, for Prometheus. A context manager.

    Args:
        gpus: Looked at, too, by number; closed with it. See ``watch_gpus``.

    Raises:
        MissingDependencyError: ``prometheus-client`` is not installed.
    """

    def __init__(self, *, gpus: Mapping[int, GpuLook] | None = None) -> None:
        try:
            from prometheus_client import CollectorRegistry
        except ImportError as error:
            raise MissingDependencyError(
                "metrics are exported with prometheus-client: pip install 'vitascope[metrics]'"
            ) from error
        super().__init__(gpus=gpus)
        self.registry: CollectorRegistry = CollectorRegistry(auto_describe=False)
        """Has these metrics alone."""
        self.registry.register(_Collector(self))

    def text(self) -> str:
        """A look now, in Prometheus's text format."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry).decode("utf-8")


def live_metrics(run: LiveRun, *, gpus: Mapping[int, GpuLook] | None = None) -> Metrics:
    """Metrics of one live run, such as ``animation.live.session.LiveSession``.

    Args:
        run: Its ``report`` is read whenever somebody looks.
        gpus: Looked at, too; see also ``Metrics.watch_gpus``.

    Raises:
        MissingDependencyError: ``prometheus-client`` is not installed.
    """
    metrics = Metrics(gpus=gpus)
    metrics.follow_live(run)
    return metrics


class _Collector:
    """What ``prometheus-client`` asks for families of samples."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Everything, families without samples included."""
        found = self._metrics.look()
        for family in FAMILIES:
            yield _filled(family, found)


def _filled(family: Family, found: Readings) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    made: Any
    if family.kind == "gauge":
        made = GaugeMetricFamily(family.name, family.help, labels=family.labels)
        for (name, labels), value in found.gauges.items():
            if name == family.name:
                made.add_metric(labels, value)
        return made
    is_histogram = family.kind == "histogram"
    kind = HistogramMetricFamily if is_histogram else CounterMetricFamily
    made = kind(family.name, family.help, labels=family.labels)
    for (name, labels), values in found.counts.items():
        if name != family.name:
            continue
        if is_histogram:
            bounds = [*(f"{bound:.6f}".rstrip("0") for bound in BUCKET_BOUNDS_SECONDS), "+Inf"]
            cumulative = np.cumsum(values[1:]).tolist()
            made.add_metric(labels, list(zip(bounds, cumulative, strict=True)), float(values[0]))
        else:
            made.add_metric(labels, float(values[0]))
    return made
