"""Encoding a compute pass: the only file that touches wgpu-py's raw C functions.

The public calls check and convert their arguments each time and cost about three times as much; a step
encodes hundreds of dispatches whose arguments never change, so they go straight to the C library.
Where the raw functions are absent (another backend, another version) the public ones are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Grid = tuple[int, int, int]
Prepared = Sequence[tuple[Any, Any, int, int, int]]
"""(pipeline, or None where it is the one before; bind group; grid x, y, z), in the form that `encode` loops over."""


@dataclass(frozen=True)
class BoundDispatch:
    """A dispatch with everything resolved: ready to be encoded any number of times."""

    pipeline: Any
    bind_group: Any
    grid: Grid
    label: str = ""


class PassEncoder:
    """Encodes lists of dispatches into compute passes; `raw` tells whether the C functions are in use."""

    def __init__(self, allow_raw: bool = True) -> None:
        self._lib: Any = None
        self._null: Any = None
        if allow_raw:
            self._lib, self._null = _raw_functions()

    @property
    def raw(self) -> bool:
        return self._lib is not None

    def prepare(self, dispatches: Sequence[BoundDispatch]) -> Prepared:
        """The dispatches as handles for `encode`."""
        prepared = []
        previous = None
        for dispatch in dispatches:
            pipeline = None if dispatch.pipeline is previous else self._handle(dispatch.pipeline)
            prepared.append((pipeline, self._handle(dispatch.bind_group), *dispatch.grid))
            previous = dispatch.pipeline
        return prepared

    def encode(self, compute_pass: Any, prepared: Prepared) -> None:
        """Encode into an open compute pass. The wgpu objects behind `prepared` must be kept alive by the caller."""
        if self._lib is None:
            for pipeline, bind_group, x, y, z in prepared:
                if pipeline is not None:
                    compute_pass.set_pipeline(pipeline)
                compute_pass.set_bind_group(0, bind_group)
                compute_pass.dispatch_workgroups(x, y, z)
            return
        handle, null = compute_pass._internal, self._null
        set_pipeline = self._lib.wgpuComputePassEncoderSetPipeline
        set_bind_group = self._lib.wgpuComputePassEncoderSetBindGroup
        dispatch_workgroups = self._lib.wgpuComputePassEncoderDispatchWorkgroups
        for pipeline, bind_group, x, y, z in prepared:
            if pipeline is not None:
                set_pipeline(handle, pipeline)
            set_bind_group(handle, 0, bind_group, 0, null)
            dispatch_workgroups(handle, x, y, z)

    def _handle(self, wrapped: Any) -> Any:
        return wrapped if self._lib is None else wrapped._internal


def _raw_functions() -> tuple[Any, Any]:
    try:
        from wgpu.backends.wgpu_native import _api

        functions = ("SetPipeline", "SetBindGroup", "DispatchWorkgroups")
        for name in functions:
            getattr(_api.lib, f"wgpuComputePassEncoder{name}")
        return _api.lib, _api.ffi.NULL
    except (ImportError, AttributeError):
        return None, None
