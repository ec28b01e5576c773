"""Tests of the server under metrics and live pages, as strangers meet it."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection

import pytest

from vitascope import http_server
from vitascope.http_server import GuardedHandler, GuardedServer
from waiting import PATIENCE_SECONDS, eventually


class Hello(GuardedHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")


@contextmanager
def serving(handler=Hello, **arguments):
    server = GuardedServer(("127.0.0.1", 0), handler, **arguments)
    thread = server.thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(server, host=None, timeout=10):
    connection = HTTPConnection(*server.server_address[:2], timeout=timeout)
    connection.putrequest("GET", "/", skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


@pytest.mark.parametrize(
    "host",
    [
        None,
        "127.0.0.1",
        "127.0.0.1:9100",
        "[::1]:9100",
        "[::1]",
        "192.168.1.7:9100",
        "localhost",
        "LocalHost:9100",
        "studio.localhost:80",
        "render-box:9100",
        "render-box.local",
        "metrics.example:9100",
    ],
)
def test_it_is_found_under_addresses_and_names_that_no_stranger_can_own(host):
    with serving(name="metrics.example") as server:
        assert ask(server, host) == (200, b"hello")


@pytest.mark.parametrize(
    "host",
    [
        "stranger.example",
        "stranger.example:9100",
        "stranger.example.",
        "127.0.0.1.stranger.example",
        "localhost.stranger.example",
        "127.0.0.1@stranger.example",
        "stranger.example:80:80",
    ],
)
def test_a_strangers_name_is_refused(host):
    with serving() as server:
        status, body = ask(server, host)
    assert status == 421
    assert b"hello" not in body


def test_who_says_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(Hello, "timeout", 0.2)
    with serving() as server, socket.create_connection(server.server_address) as silent:
        silent.sendall(b"GET / HTT")
        silent.settimeout(10)
        assert silent.recv(10) == b""  # the server hung up


def test_half_open_requests_are_few_and_the_next_who_asks_is_answered(monkeypatch):
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 8)
    threads_before = threading.active_count()
    with serving() as server, ExitStack() as stack:
        for _ in range(200):
            silent = stack.enter_context(socket.create_connection(server.server_address, timeout=10))
            silent.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        assert ask(server, "127.0.0.1") == (200, b"hello")
        assert len(server._silent) + len(server._answered) <= 8
        # Sooner than they would leave by themselves.
        deadline = time.perf_counter() + GuardedHandler.timeout / 2
        while threading.active_count() - threads_before > 8 + 1 and time.perf_counter() < deadline:
            time.sleep(0.01)  # the dropped ones are still leaving
        assert threading.active_count() - threads_before <= 8 + 1


def test_those_who_are_answered_keep_their_place(monkeypatch):
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 2)
    go_on = threading.Event()

    class Slow(Hello):
        def do_GET(self):
            go_on.wait(PATIENCE_SECONDS)
            super().do_GET()

    answers = []
    with serving(Slow) as server:
        watchers = [threading.Thread(target=lambda: answers.append(ask(server))) for _ in range(2)]
        for watcher in watchers:
            watcher.start()
        eventually(lambda: len(server._answered) >= 2)
        with pytest.raises(OSError):  # closed or reset, by chance
            ask(server)
        go_on.set()
        for watcher in watchers:
            watcher.join()
    assert answers == [(200, b"hello")] * 2


def test_without_file_descriptors_it_waits_and_goes_on():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving() as server, ExitStack() as stack:
        client = stack.enter_context(socket.socket())
        taken = os.open(os.devnull, os.O_RDONLY)
        os.close(taken)
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken, limits[1]))  # not one more
        try:
            client.connect(server.server_address)
            clock = time.pthread_getcpuclockid(server.thread.ident)  # its own, as others compute, too
            cpu_before = time.clock_gettime(clock)
            time.sleep(0.5)
            assert time.clock_gettime(clock) - cpu_before < 0.3
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        client.settimeout(10)
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(8) == b"HTTP/1.0"
