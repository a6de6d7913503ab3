"""Compiling WGSL without the checks that wgpu adds for shaders that it does not know.

By default every loop counts its turns, so that none can be endless, and every index into an array is clamped. The
counters keep a driver from unrolling loops; on an H200 both together are 13% of a one-row matmul's time. The shaders of
this package end their loops and stay in their arrays by themselves: sizes are constants, and what comes from outside
(token ids, positions, pages) is checked on the host. Workgroup memory holds what was there before: wgpu-native sets it
to 0 neither with the checks nor without.
"""

from __future__ import annotations

from typing import Any


def create_shader_module(device: Any, code: str, label: str) -> Any:
    """A GPUShaderModule of WGSL `code`, compiled without added checks where wgpu-py's backend can do that.

    Raises wgpu.GPUError where it does not compile.
    """
    try:
        from wgpu.backends.wgpu_native import _api

        ffi, create = _api.ffi, _api.libf.wgpuDeviceCreateShaderModuleTrusted
        # Their characters live as long as these two.
        code_view, label_view = _api.to_c_string_view(code), _api.to_c_string_view(label)
        source = ffi.new("WGPUShaderSourceWGSL *")
        source.chain.sType = _api.lib.WGPUSType_ShaderSourceWGSL
        source.code = code_view
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        descriptor.label = label_view
        module = create(device._internal, descriptor, _api.lib.WGPUShaderRuntimeChecks_None)
        return _api.GPUShaderModule(label, module, device)
    except (ImportError, AttributeError):
        return device.create_shader_module(code=code, label=label)
