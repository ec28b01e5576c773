"""Tests of the response to a blocked thread, which ends once, whoever ends it; and of the kinds of requests."""

from __future__ import annotations

import threading
from concurrent.futures import InvalidStateError

import numpy as np
import pytest
import torch
from watched_runs import watched

from vitascope.gpu.toolkit.batching import batch_arrays as kinds
from vitascope.gpu.toolkit.batching.batch_arrays import Kinds
from vitascope.gpu.toolkit.batching.requests import InferenceResponse, Reply

RESPONSE = InferenceResponse(1, "a", 1.0, 1, queue_ms=0.0, inference_ms=1.0, padded_size=1)


class BoomError(Exception):
    pass


def test_whoever_waits_gets_the_response() -> None:
    reply, taken = Reply(), []
    waiting = threading.Thread(target=lambda: taken.append(reply.wait(None) and reply.result()))
    waiting.start()
    assert reply.set_running_or_notify_cancel()
    assert reply.running()
    assert not reply.done()
    reply.set_result(RESPONSE)
    watched(waiting.join)
    assert taken == [RESPONSE]
    assert reply.done()


def test_an_error_is_an_answer_too() -> None:
    reply = Reply()
    reply.set_exception(BoomError("boom"))
    assert reply.wait(0)
    with pytest.raises(BoomError):
        reply.result()


def test_a_wait_has_an_end() -> None:
    assert not Reply().wait(0.01)
    assert not Reply().wait(0)


def test_it_is_withdrawn_until_its_call_begins() -> None:
    reply = Reply()
    assert reply.cancel()
    assert reply.cancelled()
    assert not reply.set_running_or_notify_cancel()
    running = Reply()
    running.set_running_or_notify_cancel()
    assert not running.cancel()
    running.set_result(RESPONSE)
    assert not running.cancel()


def test_it_ends_once() -> None:
    reply = Reply()
    reply.set_result(RESPONSE)
    for again in (lambda: reply.set_result(RESPONSE), lambda: reply.set_exception(BoomError())):
        with pytest.raises(InvalidStateError, match="the request was done"):
            again()
    withdrawn = Reply()
    withdrawn.cancel()
    with pytest.raises(InvalidStateError, match="the request was cancelled"):
        withdrawn.set_result(RESPONSE)


def test_requests_alike_are_of_one_kind_whoever_asks() -> None:
    known, met = Kinds(), []
    asking = [
        threading.Thread(target=lambda: met.append(known.of((np.zeros((2, 3)), torch.zeros(4)))))
        for _ in range(8)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert len(set(met)) == 1
    others = [np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((2, 3), np.float32), torch.zeros(2, 3), {"a": 1.0}]
    assert len({known.of(data) for data in others} | set(met)) == 6
    assert (met[0].cupy_device, met[0].torch_device) == (None, None)
    with pytest.raises(TypeError, match="not str"):
        known.of("text")


def test_kinds_do_not_pile_up(monkeypatch) -> None:
    monkeypatch.setattr(kinds, "_MOST_KINDS", 4)
    known = Kinds()
    for side in range(20):
        known.of(np.zeros(side))
    assert len(known._known) <= 4
