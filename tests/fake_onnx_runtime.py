"""A fake of ONNX Runtime on a GPU: records requests, and computes with the real one on the CPU."""

from __future__ import annotations

import types

import onnxruntime


class SessionOptions(onnxruntime.SessionOptions):
    def __init__(self):
        super().__init__()
        self.entries = {}
        self.devices = None

    def add_session_config_entry(self, key, value):
        self.entries[key] = value
        super().add_session_config_entry(key, value)

    def add_provider_for_devices(self, devices, options):
        self.devices = (devices, dict(options))


class RunOptions(onnxruntime.RunOptions):
    def __init__(self):
        super().__init__()
        self.entries = {}

    def add_run_config_entry(self, key, value):
        self.entries[key] = value
        super().add_run_config_entry(key, value)


class Binding:
    """Binds memory of the "GPU" to the real session, as it is the same memory."""

    def __init__(self, session):
        self.real = session.io_binding()
        self.inputs = {}
        self.outputs = {}

    def bind_input(self, name, device_type, device_id, element_type, shape, buffer_ptr):
        self.inputs[name] = (device_type, device_id, buffer_ptr)
        self.real.bind_input(name, "cpu", 0, element_type, shape, buffer_ptr)

    def bind_output(self, name, device_type, device_id=0, element_type=None, shape=None, buffer_ptr=None):
        self.outputs[name] = (device_type, device_id, buffer_ptr)
        if buffer_ptr is None:
            self.real.bind_output(name, "cpu", 0)
        else:
            self.real.bind_output(name, "cpu", 0, element_type, shape, buffer_ptr)

    def get_outputs(self):
        return self.real.get_outputs()


def fake_onnx_runtime(
    *,
    available=("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"),
    started=None,
    assigned=None,
    rtx_devices=1,
    failing_run=None,
):
    """A module to put in the place of ``onnxruntime``.

    Args:
        available: Providers that were compiled in.
        started: Providers that the session says it has; those that were asked for when omitted.
        assigned: Providers that got operators; the first that was asked for when omitted.
        rtx_devices: GPUs that the TensorRT-RTX plugin offers.
        failing_run: What running raises.
    """
    module = types.SimpleNamespace(
        __version__="1.31.1", sessions=[], registered=[], SessionOptions=SessionOptions, RunOptions=RunOptions
    )

    class Session:
        def __init__(self, source, options, providers=None, enable_fallback=1):
            self.options = options
            self.requested = [one if isinstance(one, tuple) else (one, {}) for one in providers or []]
            if options.devices is not None:
                self.requested = [(options.devices[0][0].ep_name, options.devices[1])]
            self.enable_fallback = enable_fallback
            self.runs = []
            self.bindings = []
            self.real = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
            self.get_inputs, self.get_outputs = self.real.get_inputs, self.real.get_outputs
            module.sessions.append(self)

        def get_providers(self):
            return list(started or [name for name, _ in self.requested])

        def get_provider_graph_assignment_info(self):
            names = assigned if assigned is not None else [self.requested[0][0]]
            return [types.SimpleNamespace(ep_name=name) for name in names]

        def io_binding(self):
            self.bindings.append(Binding(self.real))
            return self.bindings[-1]

        def run_with_iobinding(self, binding, options):
            if failing_run is not None:
                raise failing_run
            self.runs.append((binding, options))
            self.real.run_with_iobinding(binding.real, options)

        def run(self, names, inputs, options):
            return self.real.run(names, inputs, options)

    module.InferenceSession = Session
    module.get_available_providers = lambda: list(available)
    module.register_execution_provider_library = lambda name, path: module.registered.append((name, path))
    module.get_ep_devices = lambda: [
        types.SimpleNamespace(ep_name=name)
        for name in ["CPUExecutionProvider", *["NvTensorRTRTXExecutionProvider"] * rtx_devices]
    ]
    return module
