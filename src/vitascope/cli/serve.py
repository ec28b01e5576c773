"""``vitascope serve``."""

import os
import secrets
from functools import partial
from pathlib import Path
from typing import Literal

from vitascope.cli.options import Assignments, ConfigFiles
from vitascope.cli.studio import opened_studio
from vitascope.errors import ConfigError, OutputError
from vitascope.observe.terminal import Screen

_SHORTEST_TOKEN = 16


def serve(
    *films: Path,
    token_file: Path,
    port: int = 8766,
    host: str = "127.0.0.1",
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    profile: str | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
) -> None:
    """Take jobs from programs over HTTP: the studio without its page.

    vitascope serve films/ --token-file token
    curl -H "Authorization: Bearer $(cat token)" 127.0.0.1:8766/api/openapi.json

    Args:
        films: Videos and folders that may be opened; nothing else is read.
        token_file: File with the secret that programs send; created, readable only by you, if it does not exist.
        port: Port to listen on; 0 takes a free one.
        host: Address to listen on, for other machines.
        tls_cert: Certificate (PEM) for HTTPS.
        tls_key: Its key, without a password.
        profile: Speed or quality: fast, balanced or quality [default: balanced].
        device: Device to compute on; auto takes the GPU if it works.
        config: Settings file (YAML); later files override earlier ones.
        set_: One setting as key=value, for example model.batch_size=4.
    """
    opened = opened_studio(
        films,
        port=port,
        host=host,
        tls=(tls_cert, tls_key),
        profile=profile,
        device=device,
        config=config,
        set_=set_,
        token=partial(_token, token_file),
    )
    Screen().print(f"Vitascope serves {opened.address}; press Ctrl-C to quit.")
    if opened.is_open_to_read:
        Screen().print(
            "HTTP is not encrypted: others on the network can read along. --tls-cert and --tls-key turn on HTTPS."
        )
    opened.run()


def _token(path: Path) -> str:
    """Read the secret from its file, which is created if missing."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise OutputError(f"{path}: cannot be created: {error.strerror or error}") from error
    else:
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(24))
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the token: {error}") from error
    if len(token) < _SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise ConfigError(f"{path}: a token is {_SHORTEST_TOKEN} letters and digits or more, on one line")
    return token
