"""All settings as one immutable value, and the list of settings by dotted key."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from vitascope.config.animator import AnimationSettings, DebugSettings, TrackingSettings, VoiceSettings
from vitascope.config.compute import (
    BatchingSettings,
    DataloaderSettings,
    GpuSettings,
    InferenceSettings,
    ModelSettings,
    PerformanceSettings,
    PipelineSettings,
    ProcessingSettings,
    TensorrtSettings,
)
from vitascope.config.result import EdgeSettings, OutputSettings, PeopleSettings, VideoSettings
from vitascope.config.values import BatchRange, Expected, RgbColor, Section


class Settings(Section):
    """All settings. ``Settings()`` has the defaults, without any profile.

    ``load_settings`` builds it from profile, files and flags, and records where each value came from.
    """

    video: VideoSettings = Field(default_factory=VideoSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    inference: InferenceSettings = Field(default_factory=InferenceSettings)
    output: OutputSettings = Field(default_factory=OutputSettings)
    edges: EdgeSettings = Field(default_factory=EdgeSettings)
    people: PeopleSettings = Field(default_factory=PeopleSettings)
    gpu: GpuSettings = Field(default_factory=GpuSettings)
    processing: ProcessingSettings = Field(default_factory=ProcessingSettings)
    performance: PerformanceSettings = Field(default_factory=PerformanceSettings)
    pipeline: PipelineSettings = Field(default_factory=PipelineSettings)
    batching: BatchingSettings = Field(default_factory=BatchingSettings)
    tensorrt: TensorrtSettings = Field(default_factory=TensorrtSettings)
    dataloader: DataloaderSettings = Field(default_factory=DataloaderSettings)
    animation: AnimationSettings = Field(default_factory=AnimationSettings)
    tracking: TrackingSettings = Field(default_factory=TrackingSettings)
    voice: VoiceSettings = Field(default_factory=VoiceSettings)
    debug: DebugSettings = Field(default_factory=DebugSettings)

    @property
    def frames_per_call(self) -> int:
        """Consecutive frames per call of the network, if no tuner chooses.

        It is ``pipeline.stages.inference.batch_size`` if set, otherwise ``model.batch_size``; for a range its lower
        end.
        """
        return (self.pipeline.stages.inference.batch_size or self.model.batch_size).low


@dataclass(frozen=True, slots=True, eq=False)
class SettingField:
    """One setting as declared in its section."""

    key: str
    """Dotted path, for example ``pipeline.stages.decode.threads``."""
    default: Any
    """Value without profile, file or flag."""
    description: str
    """Its meaning and unit."""
    expected: str
    """Description of its values, to follow "expected" in an error message."""
    words: tuple[str, ...]
    """The words among its values."""
    holds_path: bool
    """True if its value is the path of a file or folder."""


@cache
def setting_fields() -> Mapping[str, SettingField]:
    """All settings by dotted key, in the order of their sections."""
    return types.MappingProxyType({entry.key: entry for entry in _walk(Settings, "")})


@cache
def section_keys() -> frozenset[str]:
    """The dotted keys of all sections, for example ``pipeline`` and ``pipeline.stages``."""
    return frozenset(
        key.rsplit(".", depth)[0] for key in setting_fields() for depth in range(1, key.count(".") + 1)
    )


def value_of(settings: Settings, key: str) -> Any:
    """The value of a dotted key in ``settings``."""
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def suggestion(key: str) -> str | None:
    """The setting most likely meant by ``key``; None if nothing is close.

    A name without its section (``batch_size``) counts as near only if exactly one setting has it or nearly has it.
    """
    wanted = key.strip().lower().replace("-", "_")
    fields = setting_fields()
    if matches := difflib.get_close_matches(wanted, fields, n=1, cutoff=0.75):
        return matches[0]
    # A misspelt section name matches a section, not a setting inside another one.
    if "." not in wanted and (matches := difflib.get_close_matches(wanted, section_keys(), n=1, cutoff=0.8)):
        return matches[0]
    by_name: dict[str, list[str]] = {}
    for candidate in fields:
        by_name.setdefault(candidate.rpartition(".")[2], []).append(candidate)
    for name in difflib.get_close_matches(wanted.rpartition(".")[2], by_name, n=1, cutoff=0.75):
        if len(by_name[name]) == 1:
            return by_name[name][0]
    matches = difflib.get_close_matches(wanted, [*fields, *section_keys()], n=1, cutoff=0.6)
    return matches[0] if matches else None


def _walk(model: type[BaseModel], prefix: str) -> Iterator[SettingField]:
    for name, info in model.model_fields.items():
        annotation = info.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, f"{prefix}{name}.")
            continue
        yield SettingField(
            key=prefix + name,
            default=info.get_default(call_default_factory=True, validated_data={}),
            description=info.description or "",
            expected=_expected(info),
            words=tuple(_words(annotation)),
            holds_path=any(member is Path for member in _members(annotation)),
        )


def _members(annotation: Any) -> Iterator[Any]:
    """The types that make up a union, an Annotated or a plain type."""
    if get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    elif hasattr(annotation, "__metadata__"):
        yield from _members(get_args(annotation)[0])
    else:
        yield annotation


def _words(annotation: Any) -> Iterator[str]:
    """The words of a ``Literal`` or an enumeration, also inside a union or a list."""
    if get_origin(annotation) is Literal:
        yield from (word for word in get_args(annotation) if isinstance(word, str))
    elif isinstance(annotation, type) and issubclass(annotation, StrEnum):
        yield from annotation
    else:
        for member in get_args(annotation):
            yield from _words(member)


def _expected(info: FieldInfo) -> str:
    return _note(info.metadata) or _expected_of(info.annotation, info.metadata)


def _note(metadata: Sequence[Any]) -> str | None:
    return next((item.text for item in metadata if isinstance(item, Expected)), None)


def _expected_of(annotation: Any, metadata: Sequence[Any]) -> str:
    if hasattr(annotation, "__metadata__"):
        inner = annotation.__metadata__
        return _note(inner) or _expected_of(get_args(annotation)[0], inner)
    if get_origin(annotation) in (Union, types.UnionType):
        members = get_args(annotation)
        choices = [
            choice for member in members if get_origin(member) is Literal for choice in get_args(member)
        ]
        others = [_expected_of(member, metadata) for member in members if get_origin(member) is not Literal]
        return _alternatives([*map(str, choices), *others])
    if get_origin(annotation) is Literal:
        return _alternatives([str(choice) for choice in get_args(annotation)])
    if annotation in (BatchRange, RgbColor):
        return str(annotation.expected)
    words = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a text",
        type(None): "null",
    }
    return words[annotation] + (_range_words(metadata) if annotation in (int, float) else "")


def _alternatives(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def _range_words(metadata: Sequence[Any]) -> str:
    words = ""
    for limit in metadata:
        match limit:
            case annotated_types.Ge(bound):
                words += f" from {bound}"
            case annotated_types.Gt(bound):
                words += f" above {bound}"
            case annotated_types.Le(bound):
                words += f" to {bound}" if "from" in words else f" up to {bound}"
            case annotated_types.Lt(bound):
                words += f" to below {bound}"
    return words
