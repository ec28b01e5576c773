"""``vitascope studio``."""

import threading
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitascope.cli.options import Assignments, ConfigFiles, Switch
from vitascope.config import SettingsSource, given_flags
from vitascope.errors import MissingDependencyError, UsageError
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.terminal import Screen

if TYPE_CHECKING:
    from vitascope.studio.server import Opened


def studio(
    *films: Path,
    port: int = 8765,
    host: str = "127.0.0.1",
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    no_browser: Switch = False,
    profile: str | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
) -> None:
    """Preview videos, correct their mattes and cut people out, in a web page on this machine.

    vitascope studio                       the videos of the current folder
    vitascope studio wedding.mp4           one video
    vitascope studio films/ --no-browser   only prints the address

    Saves corrections beside each video, as film.hints.yaml for
    vitascope segment --hints.

    Args:
        films: Videos and folders that the page may open; it reads nothing else.
        port: Port to listen on; 0 takes a free one.
        host: Address to listen on, for other machines; whoever has the printed address may use it.
        tls_cert: Certificate (PEM) for HTTPS, which WebXR needs.
        tls_key: Its key, without a password.
        no_browser: Only print the address.
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
    )
    Screen().print(
        f"Vitascope studio: {opened.address}\nPress Ctrl-C to quit; unfinished jobs start again next time."
    )
    if opened.is_open_to_read:
        Screen().print(
            "HTTP is not encrypted: others on the network can read along, and headsets allow no WebXR. --tls-cert and "
            "--tls-key turn on HTTPS."
        )
    if not no_browser:
        threading.Thread(target=webbrowser.open, args=(opened.address,), daemon=True).start()
    opened.run()


def opened_studio(
    films: Sequence[Path],
    *,
    port: int,
    host: str,
    tls: tuple[Path | None, Path | None],
    profile: str | None,
    device: str | None,
    config: ConfigFiles,
    set_: Assignments,
    token: Callable[[], str] | None = None,
) -> "Opened":
    """Open the studio; if a token is given, only for programs. The token is read after all checks.

    Raises:
        MissingDependencyError: The packages of the extra are not installed.
        UsageError: A certificate is given without a key, or a key without a certificate.
        ConfigError: A setting is unknown or out of range.
        InputError: A video or folder does not exist.
        OutputError: The address cannot be used, or another studio has the queue.
    """
    certificate, key = tls
    if (certificate is None) != (key is None):
        raise UsageError("--tls-cert and --tls-key must be given together: a certificate and its key")
    flags = given_flags({"gpu.device": ("--device", device)})
    source = SettingsSource(profile=profile, files=config, assignments=set_, flags=flags)
    source.load()  # report invalid settings before opening anything
    with holding_interrupts():
        from vitascope.config import vitascope_home

        try:
            from vitascope.studio.guard import TlsFiles
            from vitascope.studio.server import open_studio
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"studio needs {error.name}: pip install 'vitascope[studio]'"
            ) from error
    return open_studio(
        list(films) or [Path()],
        source,
        home=vitascope_home(),
        host=host,
        port=port,
        token=None if token is None else token(),
        with_page=token is None,
        tls=None if certificate is None or key is None else TlsFiles(certificate, key),
    )
