from __future__ import annotations

from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Map, Sink, Source
from vitascope.segmentation.processes.film_joiner import join_pipeline_reports


def test_distributions_add_up():
    reports = []
    for count in (5, 9):
        pipeline = Pipeline([Source("decode", range(count)), Map("infer", str), Sink("encode", len)])
        reports.append(pipeline.run())
    joined = join_pipeline_reports(reports, processes=2, frame_count=14, wall_seconds=1.0, finished=True)
    assert sum(joined.latency.octave_counts) == 14
    longest = max(len(report.latency.octave_counts) for report in reports)
    assert len(joined.latency.octave_counts) == longest
    assert [sum(stage.latency.octave_counts) for stage in joined.stages] == [14, 14, 14]
