"""Tests of precedence, origins, and errors that name key, value, expectation and source."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from vitascope.config import (
    BatchRange,
    FlagValue,
    LoadedSettings,
    Origin,
    OriginKind,
    RgbColor,
    Settings,
    load_settings,
)
from vitascope.config.loading import settings_of
from vitascope.errors import ConfigError, UsageError


def write(folder: Path, text: str, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def message_of(**sources: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(**sources)  # type: ignore[arg-type]  # each test passes one source of the right type
    text = str(caught.value)
    assert "\n" not in text
    assert caught.value.exit_code == 2
    return text


def batch_and_origin(loaded: LoadedSettings) -> tuple[str, str]:
    return str(loaded.settings.model.batch_size), str(loaded.origin("model.batch_size"))


def test_numbers_of_numpy_are_numbers():
    flags = {
        "model.batch_size": np.int64(2),
        "edges.feather_px": np.float32(1.5),
        "edges.threshold": np.array([0.25, 0.75]),
        "edges.decontaminate": np.bool_(False),
    }
    settings = load_settings(flags=flags).settings
    assert (settings.edges.feather_px, settings.edges.decontaminate) == (1.5, False)
    assert (
        settings.edges.threshold
        == load_settings(assignments=["edges.threshold=0.25,0.75"]).settings.edges.threshold
    )
    assert settings.model.batch_size == load_settings(flags={"model.batch_size": 2}).settings.model.batch_size


def test_each_source_overrides_the_ones_before_it(tmp_path: Path) -> None:
    first = write(tmp_path, "model:\n  batch_size: 2\n", "first.yaml")
    second = write(tmp_path, "\n\nmodel:\n  # comment\n  batch_size: 3\n", "second.yaml")
    flags = {"model.batch_size": FlagValue(6, "--batch")}
    sets = ["model.batch_size=4", "model.batch_size=5"]

    assert batch_and_origin(load_settings(profile="fast")) == ("1", "default")
    assert batch_and_origin(load_settings()) == ("4", "profile balanced")
    assert batch_and_origin(load_settings(files=[first])) == ("2", f"{first}:2")
    assert batch_and_origin(load_settings(files=[first, second])) == ("3", f"{second}:5")
    assert batch_and_origin(load_settings(files=[second, first])) == ("2", f"{first}:2")
    assert batch_and_origin(load_settings(files=[first], assignments=sets[:1])) == ("4", "--set")
    assert batch_and_origin(load_settings(files=[first], assignments=sets)) == ("5", "--set")
    assert batch_and_origin(load_settings(files=[first], assignments=sets, flags=flags)) == ("6", "--batch")


def test_a_file_overrides_the_profile_only_where_it_speaks(tmp_path: Path) -> None:
    path = write(tmp_path, "output: {speed: balanced}")
    loaded = load_settings(profile="quality", files=[path])
    assert loaded.settings.output.speed == "balanced"
    assert loaded.settings.model.name == "rvm"
    assert loaded.origin("model.name") == Origin(OriginKind.PROFILE, "quality")
    assert str(loaded.origin("model.name")) == "profile quality"
    assert loaded.origin("output.speed") == Origin(OriginKind.FILE, f"{path}:1")


def test_files_name_a_profile_and_the_argument_wins(tmp_path: Path) -> None:
    fast = write(tmp_path, "profile: fast\n", "a.yaml")
    quality = write(tmp_path, "profile: quality\n", "b.yaml")
    assert load_settings().profile == "balanced"
    assert load_settings(files=[fast]).settings.model.name == "selfie"
    assert load_settings(files=[fast, quality]).profile == "quality"
    assert load_settings(files=[quality], profile="fast").profile == "fast"
    # The profile is below all files, including those before the one that names it.
    own = write(tmp_path, "model.name: mine\n", "c.yaml")
    assert load_settings(files=[own, quality]).settings.model.name == "mine"


def test_a_bare_value_is_a_programs_own() -> None:
    loaded = load_settings(flags={"output.key_color": "lime", "output.kinds": ("mask", "key")})
    assert str(loaded.origin("output.key_color")) == "settings"
    assert loaded.settings.output.key_color == RgbColor(0, 255, 0)
    assert loaded.settings.output.kinds == ("mask", "key")


def test_a_flag_can_set_null() -> None:
    loaded = load_settings(profile="quality", flags={"model.input_size": None})
    assert loaded.settings.model.input_size is None
    assert loaded.origin("model.input_size").kind is OriginKind.FLAG


@pytest.mark.parametrize(
    ("assignment", "key", "value"),
    [
        ("output.key_color=#78FF9B", "key_color", RgbColor(0x78, 0xFF, 0x9B)),
        ("output.key_color=1,2,3", "key_color", RgbColor(1, 2, 3)),
        ("output.kinds=mask,key", "kinds", ("mask", "key")),
        ("output.kinds=[mask, key]", "kinds", ("mask", "key")),
        ("output.kinds=mask", "kinds", ("mask",)),
        ("output.crf=", "crf", None),
        ("output.crf=null", "crf", None),
        ("output.blur_radius=1e1", "blur_radius", 10.0),
        ("output.preset=8", "preset", "8"),
        ("output.bit_depth=10", "bit_depth", 10),
    ],
)
def test_assignments_are_spelled_as_in_yaml(assignment: str, key: str, value: object) -> None:
    assert getattr(load_settings(assignments=[assignment]).settings.output, key) == value


def test_values_may_hold_equals_signs_and_brackets() -> None:
    assert load_settings(assignments=["model.name=a=b[c]"]).settings.model.name == "a=b[c]"
    assert load_settings(assignments=["model.name=[c"]).settings.model.name == "[c"


def test_paths_are_relative_to_the_file_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    path = write(tmp_path / "sub", "output.background: sea.jpg\nmodel.name: nets/my.onnx\n")

    settings = load_settings(files=[Path("../sub/my.yaml")]).settings
    assert settings.output.background is not None
    assert settings.output.background.resolve() == path.parent / "sea.jpg"
    assert settings.output.background.is_absolute()
    assert Path(settings.model.name).resolve() == path.parent / "nets" / "my.onnx"

    typed = load_settings(assignments=["output.background=sea.jpg", "model.name=rvm"]).settings
    assert typed.output.background == tmp_path / "work" / "sea.jpg"
    assert typed.model.name == "rvm"


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    loaded = load_settings(flags={"output.background": "~/sea.jpg"})
    assert loaded.settings.output.background == tmp_path / "sea.jpg"


def test_rows_cover_everything_once_with_origin_and_meaning() -> None:
    loaded = load_settings(profile="animator", assignments=["performance.gpu_memory_fraction=0.5"])
    rows = {row.key: row for row in loaded.rows()}
    assert len(rows) == len(loaded.rows())
    assert {key.partition(".")[0] for key in rows} == set(Settings.model_fields)
    assert rows["performance.gpu_memory_fraction"].value_text == "0.5"
    assert rows["animation.batch_size"].value_text == "4"
    assert str(rows["animation.batch_size"].origin) == "profile animator"
    assert str(rows["video.stereo"].origin) == "default"
    assert all(row.description.endswith(".") for row in rows.values())


def test_only_what_the_user_set_himself_is_explicit(tmp_path: Path) -> None:
    path = write(tmp_path, "animation:\n  batch_size: 2\nmodel:\n  batch_size: 8\n")
    loaded = load_settings(
        profile="animator", files=[path], assignments=["performance.target_fps=30", "video.stereo=sbs"]
    )
    explicit = {row.key for row in loaded.rows() if row.origin.explicit}
    assert explicit == {"animation.batch_size", "model.batch_size", "performance.target_fps", "video.stereo"}
    assert not any(row.origin.explicit for row in load_settings(profile="animator").rows())


def test_which_settings_there_are() -> None:
    keys = {row.key for row in load_settings().rows()}
    sections = ("video.", "output.", "edges.", "people.", "tracking.", "voice.")
    assert {key for key in keys if not key.startswith(sections)} == {
        "model.name",
        "model.kind",
        "model.person_class",
        "model.look_ahead_frames",
        "animation.animator",
        "animation.liveportrait_folder",
        "animation.batch_size",
        "animation.gpu_id",
        "animation.inference_precision",
        "animation.use_half_precision",
        "animation.enable_tensorrt",
        "performance.frame_skip_enabled",
        "performance.frame_skip_threshold",
        "performance.prefetch_frames",
        "performance.gpu_memory_fraction",
        "performance.clear_cache_interval",
        "performance.use_async_capture",
        "performance.use_async_output",
        "animation.brows",
        "animation.calibrate",
        "animation.expression",
        "animation.eyes",
        "animation.face",
        "animation.gaze",
        "animation.max_side",
        "animation.mirror",
        "animation.mouth",
        "animation.neutral",
        "animation.pose",
        "model.batch_size",
        "model.warm_up_frames",
        "model.input_size",
        "model.downsample_ratio",
        "model.backend",
        "gpu.device",
        "gpu.device_id",
        "gpu.device_ids",
        "model.num_workers",
        "model.prefetch_factor",
        "processing.use_multiprocessing",
        "processing.chunk_size",
        "processing.cluster",
        "processing.overlap_frames",
        "pipeline.stages.preprocess.cuda_streams",
        "pipeline.stages.postprocess.threads",
        "dataloader.persistent_workers",
        "batching.dynamic.min_batch_size",
        "batching.dynamic.max_batch_size",
        "batching.dynamic.timeout_ms",
        "tensorrt.cache_dir",
        "tensorrt.precision.fp16",
        "tensorrt.precision.int8",
        "tensorrt.workspace_gb",
        "gpu.precision",
        "gpu.decoder_sessions",
        "gpu.encoder",
        "gpu.max_vram_usage",
        "gpu.memory_fraction",
        "gpu.cudnn_benchmark",
        "gpu.cudnn_deterministic",
        "gpu.allow_tf32",
        "performance.mode",
        "performance.auto_tune",
        "performance.max_latency_ms",
        "performance.target_fps",
        "processing.num_threads",
        "processing.enable_caching",
        "processing.cache_size_gb",
        "inference.skip_static",
        "inference.region",
        "inference.region_margin",
        "inference.recheck_frames",
        "inference.bidirectional",
        "inference.missed_people",
        "inference.early_exit",
        "inference.early_exit_confidence",
        "inference.scales",
        "inference.stereo_agreement",
        "processing.max_queue_size",
        "processing.max_queue_mb",
        "pipeline.stages.decode.threads",
        "pipeline.stages.inference.batch_size",
        "pipeline.stages.encode.threads",
        "dataloader.pin_memory",
        "debug.profile_performance",
    }
    assert {key.partition(".")[0] + "." for key in keys} >= set(sections)


def test_the_inference_stage_overrides_the_models_batch() -> None:
    assert load_settings(assignments=["model.batch_size=16-32"]).settings.frames_per_call == 16
    both = ["model.batch_size=16-32", "pipeline.stages.inference.batch_size=2-4"]
    assert load_settings(assignments=both).settings.frames_per_call == 2


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (
            "\n\nmodel: {batchsize: 4}",
            3,
            "unknown setting 'model.batchsize'; did you mean 'model.batch_size'?",
        ),
        ("video:\n  sterio: sbs", 2, "unknown setting 'video.sterio'; did you mean 'video.stereo'?"),
        ("batch_size: 4", 1, "unknown setting 'batch_size'; did you mean 'model.batch_size'?"),
        ("modle:\n  name: rvm", 1, "unknown setting 'modle'; did you mean 'model'?"),
        (
            "output:\n  key-color: red",
            2,
            "unknown setting 'output.key-color'; did you mean 'output.key_color'?",
        ),
        ("zzzzzz: 4", 1, "unknown setting 'zzzzzz'; `vitascope config show` lists all settings"),
        ("1: 2", 1, "unknown setting '1'; `vitascope config show` lists all settings"),
        (
            "model:\n  name: rvm\n  batch_size: lots",
            3,
            "model.batch_size is 'lots', expected a whole number from 1 to 1024 or a range such as \"16-32\"",
        ),
        ("gpu:\n  max_vram_usage: 1.5", 2, "gpu.max_vram_usage is 1.5, expected a number above 0 up to 1"),
        ("gpu.device: tpu", 1, "gpu.device is 'tpu', expected auto, cuda or cpu"),
        ("output.keep_partial: 1", 1, "output.keep_partial is 1, expected true or false"),
        ("output.crf: 64", 1, "output.crf is 64, expected a whole number from 0 to 63 or null"),
        ("output.kinds: [mask, mesk]", 1, "output.kinds is [mask, mesk], expected one or more of mask, key,"),
        ("model.name: 5", 1, "model.name is 5, expected a text"),
        ("model.batch_size: {low: 1}", 1, "model.batch_size is {low: 1}, expected a whole number"),
        ("output.key_color: #78FF9B", 1, "output.key_color is null, expected a colour"),
        ("edges.grow_px: .inf", 1, "edges.grow_px is inf, expected a number from -256 to 256"),
    ],
)
def test_a_wrong_line_is_named(text: str, line: int, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    assert message_of(files=[path]).startswith(f"{path}:{line}: {expected}")


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("model.batchsize=4", "--set: unknown setting 'model.batchsize'; did you mean 'model.batch_size'?"),
        (
            "model=4",
            "--set: 'model' is a section of settings; set one of its own, such as 'model.name'",
        ),
        ("model.batch_size", "--set 'model.batch_size': expected key=value, such as model.batch_size=4"),
        ("profile=fast", "--set: a profile is chosen with --profile"),
        ("gpu.device_id=1.5", "--set: gpu.device_id is 1.5, expected a whole number from 0 to 255"),
        ("gpu.device_id=1.0", "--set: gpu.device_id is 1.0, expected a whole number from 0 to 255"),
        ("model.batch_size={a: [", "--set: model.batch_size is '{a: [', expected a whole number"),
        ("=4", "--set: unknown setting ''"),
        (
            "performance.mode=latensy",
            "--set: performance.mode is 'latensy', expected auto, throughput or latency; did you mean latency?",
        ),
        (
            "output.codec=H264",
            "--set: output.codec is 'H264', expected auto, h264, h265, av1, prores, vp9, ffv1 or png; "
            "did you mean h264?",
        ),
        (
            "output.kinds=key,overly",
            "--set: output.kinds is 'key,overly', expected one or more of mask, key, cutout, alpha, blur, replace, "
            "overlay, packed-alpha; did you mean overlay?",
        ),
    ],
)
def test_a_wrong_assignment_is_named(assignment: str, expected: str) -> None:
    assert message_of(assignments=[assignment]).startswith(expected)


def test_a_text_is_no_list_and_a_list_no_mapping() -> None:
    assert message_of(assignments="model.batch_size=4") == (
        "assignments is 'model.batch_size=4', expected a list such as ['model.batch_size=4']"
    )
    assert message_of(files="mine.yaml") == "files is 'mine.yaml', expected a list such as ['mine.yaml']"
    assert message_of(flags=["model.batch_size=4"]) == (
        "settings is a list, expected a mapping such as {'model.batch_size': 4}"
    )
    assert message_of(flags={3: 1}) == "settings: 3 is not the name of a setting, such as 'model.batch_size'"
    assert message_of(profile=3) == "profile is 3, expected the name of a profile"


def test_settings_that_were_loaded_stand_alone() -> None:
    loaded = load_settings(profile="fast")
    assert settings_of(profile=None, settings=None, loaded=loaded) is loaded
    for more in (
        {"profile": "fast", "settings": None},
        {"profile": None, "settings": {"model.batch_size": 4}},
    ):
        with pytest.raises(UsageError, match=r"^loaded replaces profile and settings"):
            settings_of(loaded=loaded, **more)
    with pytest.raises(UsageError, match=r"^loaded is a dict, expected what load_settings gives$"):
        settings_of(profile=None, settings=None, loaded={"model.batch_size": 4})


def test_a_wrong_flag_is_named() -> None:
    flags = {"output.crf": FlagValue(99, "--crf")}
    assert message_of(flags=flags) == (
        "--crf: output.crf is 99, expected a whole number from 0 to 63"
    )  # without "or null", which is no word after a flag
    assert message_of(flags={"output.crf": 99}).endswith(" to 63 or null")
    assert message_of(flags={"output.crv": 9}).startswith("settings: unknown setting 'output.crv'")


def test_unknown_profiles_list_the_profiles(tmp_path: Path) -> None:
    names = "the profiles are animator, balanced, fast, quality"
    assert message_of(profile="fastest").startswith(f"unknown profile 'fastest'; {names}")
    assert message_of(profile="Qualty").endswith("; did you mean quality?")
    path = write(tmp_path, "# mine\nprofile: ../fast")
    assert message_of(files=[path]).startswith(f"{path}:2: unknown profile '../fast'; {names}")
    path = write(tmp_path, "profile: [fast]")
    assert message_of(files=[path]) == f"{path}:1: profile is [fast], expected the name of a profile"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "output.kinds: [key, replace]",
            "output.kinds has replace, which needs output.background (--background), an image or a video",
        ),
        (
            "video: {start_seconds: 5, end_seconds: 4}",
            "video.end_seconds 4 is not after video.start_seconds 5",
        ),
        (
            "batching.dynamic: {min_batch_size: 9}",
            "batching.dynamic.min_batch_size 9 is above batching.dynamic.max_batch_size 8",
        ),
    ],
)
def test_settings_that_contradict_each_other(text: str, expected: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    assert message_of(files=[path]) == f"{path}:1: {expected}"


def test_a_contradiction_names_all_its_sources(tmp_path: Path) -> None:
    path = write(tmp_path, "video.end_seconds: 4")
    text = message_of(files=[path], flags={"video.start_seconds": FlagValue("0:30", "--start")})
    assert text == f"--start, {path}:1: video.end_seconds 4 is not after video.start_seconds 30"


def test_long_values_are_cut_and_stay_on_one_line() -> None:
    text = message_of(assignments=["model.batch_size=" + "long \\n" * 1000])
    assert len(text) < 200
    text = message_of(flags={"gpu.device": "a\nb"})
    assert r"'a\nb'" in text


def test_origin_refuses_unknown_keys() -> None:
    with pytest.raises(ConfigError, match=re.escape("did you mean 'model.name'?")):
        load_settings().origin("model.nam")


def test_a_range_is_kept_for_the_tuner() -> None:
    assert load_settings(assignments=["model.batch_size=4-8"]).settings.model.batch_size == BatchRange(4, 8)
