"""How requests come to their end, where two want to end the same one."""

from __future__ import annotations

from concurrent.futures import Future

from fake_clock import FakeClock

from vitascope.gpu.toolkit.batching.batcher import Answers, BatchTally, ComputedPart
from vitascope.gpu.toolkit.batching.requests import InferenceRequest
from vitascope.gpu.toolkit.batching.waiting import Waiting


class GivenUpInTheLastMoment(Future):
    """Answered by somebody else between the look whether it is and the answer."""

    def set_result(self, result):
        super().set_exception(TimeoutError("the batcher stopped"))
        super().set_result(result)


def test_a_request_is_counted_once_when_stop_comes_between():
    tally = BatchTally()
    answers = Answers(tally, FakeClock())
    plain, raced = Future(), GivenUpInTheLastMoment()
    entries = [
        Waiting(InferenceRequest(0, request_id=number), "kind", number, 0.0, future)
        for number, future in enumerate((plain, raced))
    ]
    answers.give(ComputedPart(entries, [1, 2], 2), began=0.0, ended=1.0)
    tally.count(failed=1)  # as whoever gave it up does
    assert plain.result().data == 1
    assert isinstance(raced.exception(), TimeoutError)
    stats = tally.stats(waiting=0, running=0)
    assert (stats.completed, stats.failed) == (1, 1)
