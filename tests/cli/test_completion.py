"""Tests of shell completion: commands and choices from the script, file names from the shell."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from vitascope.cli.app import app

ASK = """
source "$1"
COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2)) COMPREPLY=()
_vitascope
printf '%s\\n' "${COMPREPLY[@]}"
complete -p vitascope
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "vitascope.bash"
    path.write_text(app.generate_completion(shell="bash"))
    return path


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("seg",), {"segment"}),
        (("segment", "--type", "cut"), {"cutout"}),
        (("segment", "clips/hol"), {""}),
        (("segment", "in.mp4", "--out", "cut/"), {""}),
    ],
)
def test_bash_completes_and_leaves_free_words_to_the_shell(script, words, offered):
    answer = subprocess.run(
        ["bash", "-c", ASK, "bash", script, "vitascope", *words], capture_output=True, text=True, check=True
    )
    *found, how = answer.stdout.splitlines()
    assert set(found) == offered
    assert how == "complete -o default -F _vitascope vitascope"


def test_zsh_offers_files_for_free_words():
    lines = app.generate_completion(shell="zsh").splitlines()
    for words in ("--out[", "--model[", "'*:Videos, images"):
        assert any(words in line and line.endswith(":_files' \\") for line in lines), words
    assert not any("--output[" in line and "_files" in line for line in lines)
