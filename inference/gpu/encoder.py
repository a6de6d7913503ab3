"""Encoding a compute pass, by wgpu-native's own C functions where it can be.

A step encodes hundreds of dispatches whose arguments never change. The public calls check and convert these each time
and cost about three times as much. And cffi, through which they go, releases the interpreter's lock around every call:
the thread that encodes would lose it again and again to those that finish, submit and poll. ctypes calls the same
functions with the lock kept, which is safe as they only record: they wait for no other thread and call no Python.
Where wgpu-py gives no way to them (another backend, another version) the public calls are used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Grid = tuple[int, int, int]
Prepared = Sequence[tuple[Any, Any, Any, Any, Any]]
"""(pipeline, or None where it is the one before; bind group; grid x, y, z), in the form that `encode` loops over."""

_NULL, _ZERO, _NO_OFFSETS = ctypes.c_void_p(), ctypes.c_uint32(0), ctypes.c_size_t(0)


@dataclass(frozen=True)
class BoundDispatch:
    """A dispatch with everything resolved: ready to be encoded any number of times."""

    pipeline: Any
    bind_group: Any
    grid: Grid
    label: str = ""


@dataclass(frozen=True)
class _RawFunctions:
    """Functions of wgpu-native. Each argument must be a ctypes value of the parameter's C type: none is converted."""

    set_pipeline: Callable[..., None]
    set_bind_group: Callable[..., None]
    dispatch_workgroups: Callable[..., None]
    address: Callable[[Any], int]
    """Of what a handle or a function of wgpu-py points to."""


class PassEncoder:
    """Encodes lists of dispatches into compute passes; `raw` tells whether the C functions are in use."""

    def __init__(self, allow_raw: bool = True) -> None:
        self._raw = _raw_functions() if allow_raw else None

    @property
    def raw(self) -> bool:
        return self._raw is not None

    def prepare(self, dispatches: Sequence[BoundDispatch]) -> Prepared:
        """The dispatches as arguments for `encode`."""
        prepared = []
        previous = None
        for dispatch in dispatches:
            pipeline = None if dispatch.pipeline is previous else self._handle(dispatch.pipeline)
            grid = dispatch.grid if self._raw is None else map(ctypes.c_uint32, dispatch.grid)
            prepared.append((pipeline, self._handle(dispatch.bind_group), *grid))
            previous = dispatch.pipeline
        return prepared

    def encode(self, compute_pass: Any, prepared: Prepared) -> None:
        """Encode into an open compute pass. The wgpu objects behind `prepared` must be kept alive by the caller."""
        if self._raw is None:
            for pipeline, bind_group, x, y, z in prepared:
                if pipeline is not None:
                    compute_pass.set_pipeline(pipeline)
                compute_pass.set_bind_group(0, bind_group)
                compute_pass.dispatch_workgroups(x, y, z)
            return
        handle = self._handle(compute_pass)
        set_pipeline, set_bind_group = self._raw.set_pipeline, self._raw.set_bind_group
        dispatch_workgroups = self._raw.dispatch_workgroups
        for pipeline, bind_group, x, y, z in prepared:
            if pipeline is not None:
                set_pipeline(handle, pipeline)
            set_bind_group(handle, _ZERO, bind_group, _NO_OFFSETS, _NULL)
            dispatch_workgroups(handle, x, y, z)

    def _handle(self, wrapped: Any) -> Any:
        return wrapped if self._raw is None else ctypes.c_void_p(self._raw.address(wrapped._internal))


def _raw_functions() -> _RawFunctions | None:
    try:
        from wgpu.backends.wgpu_native import _api

        lib, ffi = _api.lib, _api.ffi
        functions = (
            lib.wgpuComputePassEncoderSetPipeline,
            lib.wgpuComputePassEncoderSetBindGroup,
            lib.wgpuComputePassEncoderDispatchWorkgroups,
        )
    except (ImportError, AttributeError):
        return None

    def address(pointer: Any) -> int:
        return int(ffi.cast("uintptr_t", pointer))

    # A function of this type keeps the interpreter's lock. It returns nothing.
    keeping_lock = ctypes.PYFUNCTYPE(None)
    set_pipeline, set_bind_group, dispatch_workgroups = (keeping_lock(address(function)) for function in functions)
    return _RawFunctions(set_pipeline, set_bind_group, dispatch_workgroups, address)
