from __future__ import annotations

import inspect
import traceback
import weakref

import pytest

from vitascope import errors

CODES = {
    "VitascopeError": 1,
    "UsageError": 2,
    "ConfigError": 2,
    "InputError": 3,
    "CorruptInputError": 3,
    "OutputError": 4,
    "BeingWrittenError": 4,
    "ModelError": 5,
    "ModelUnavailableError": 5,
    "ModelChecksumError": 5,
    "EngineError": 5,
    "BatchingError": 5,
    "RequestRejectedError": 5,
    "BatcherStoppedError": 5,
    "DeviceError": 5,
    "DeviceMemoryError": 5,
    "KernelCompileError": 5,
    "MemoryLimitError": 5,
    "MissingDependencyError": 5,
    "WorkerError": 1,
}


def test_every_error_has_its_documented_exit_code():
    classes = {
        name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and name in errors.__all__
    }
    assert set(classes) == set(CODES) | {"PipelineError"}
    for name, code in CODES.items():
        assert issubclass(classes[name], errors.VitascopeError)
        assert classes[name]("message").exit_code == code
        assert name in errors.__doc__


def test_a_pipeline_error_has_the_code_of_its_first_cause_and_splits_into_its_kind():
    group = errors.PipelineError("run failed", [errors.OutputError("disk full"), ValueError("later")])
    assert group.exit_code == 4
    assert errors.PipelineError("run failed", [ValueError("ours")]).exit_code == 1
    match, rest = group.split(errors.OutputError)
    assert isinstance(match, errors.PipelineError)
    assert isinstance(rest, errors.PipelineError)
    with pytest.raises(errors.VitascopeError):
        raise group


class Surface:
    """Represents something large in progress."""


def test_what_was_on_its_way_is_let_go_and_the_traceback_still_prints():
    seen = []

    def hold():
        surface = Surface()
        seen.append(weakref.ref(surface))
        raise ValueError("too large")

    def stage():
        surface = Surface()
        seen.append(weakref.ref(surface))
        try:
            hold()
        except ValueError as cause:
            raise errors.DeviceMemoryError("it does not fit") from cause

    try:
        try:
            stage()
        except errors.DeviceMemoryError as cause:
            raise errors.PipelineError("stage 'matte' failed", [cause]) from None
    except errors.PipelineError as error:
        kept = error
    assert [surface() is None for surface in seen] == [False, False]
    errors.let_go(kept)
    assert [surface() is None for surface in seen] == [True, True]
    assert "in hold" in "".join(traceback.format_exception(kept))
