"""Tests of the logger with timers, under the names that its users know."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from vitascope.observe.logger import get_logger


@pytest.fixture
def logger(request):
    logger = get_logger(f"test.{request.node.name}")
    yield logger
    logger.reset_stats()


def test_the_guides_example(logger, capsys):
    for _ in range(3):
        with logger.timer("model_inference"):
            time.sleep(0.002)
    stats = logger.get_stats()
    print(f"Average inference time: {stats['timers']['model_inference']['mean'] * 1000:.2f}ms")
    assert capsys.readouterr().out.startswith("Average inference time: ")
    timer = stats["timers"]["model_inference"]
    assert timer["count"] == 3
    assert 0.002 <= timer["min"] <= timer["mean"] <= timer["max"]
    assert timer["min"] * 0.97 <= timer["p50"] <= timer["p95"] <= timer["p99"] <= timer["max"]
    assert timer["total"] == pytest.approx(3 * timer["mean"])
    assert timer["gpu_total"] is None


def test_a_name_has_one_logger():
    assert get_logger() is get_logger("vitascope")
    assert get_logger("other") is not get_logger()


def test_it_logs(logger, caplog):
    with caplog.at_level(logging.INFO):
        logger.info("took %d ms", 3)
    assert caplog.messages == ["took 3 ms"]


def test_timers_of_all_threads_and_places_are_added_up(logger):
    def work():
        with logger.timer("outer"), logger.timer("inner"):
            pass
        with logger.timer("inner"):
            pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timers = logger.get_stats()["timers"]
    assert timers["inner"]["count"] == 8
    assert timers["outer"]["count"] == 4
    logger.reset_stats()
    assert logger.get_stats() == {"timers": {}}


def test_a_block_that_fails_is_timed_too(logger):
    with pytest.raises(ZeroDivisionError), logger.timer("broken"):
        _ = 1 / 0
    assert logger.get_stats()["timers"]["broken"]["count"] == 1
