"""An empty bucket on a local server that simulates S3."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import Request, urlopen

import pytest

from vitascope.media import remote
from vitascope.media.remote import path_of

__all__ = ["bucket"]


@contextmanager
def bucket(name: str) -> Iterator[remote.RemotePath]:
    """Provide the bucket; the environment names its server, also for processes started meanwhile."""
    s3fs = pytest.importorskip("s3fs", reason="S3 is read through s3fs: pip install 'vitascope[remote]'")
    server_module = pytest.importorskip("moto.server", reason="moto stands for S3")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()

    def forget() -> None:
        """Forget another server: s3fs keeps its connections, and does not read the environment again."""
        remote._store_of.cache_clear()
        s3fs.S3FileSystem.clear_instance_cache()

    with pytest.MonkeyPatch.context() as patch:
        for variable, value in {
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": "tests",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(variable, value)
        forget()
        # Servers of one process share their memory, so delete what an earlier one held.
        urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST"), timeout=30).close()
        remote._store_of("s3").mkdir(name)
        made = path_of(f"s3://{name}")
        assert isinstance(made, remote.RemotePath)
        yield made
    forget()
    server.stop()
