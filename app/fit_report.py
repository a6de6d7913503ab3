"""Whether models on this machine fit: the rows of `chat models info`, and what the model menu asks for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

from app.options import EngineOptions
from app.units import format_bytes
from inference.errors import DoesNotFit, GlasschatError
from inference.fit import Fit
from inference.fit_target import FitTarget

if TYPE_CHECKING:
    from inference.model_files import ModelFiles
    from inference.plan.ops import Device
    from inference.weights import Precision


def fit_rows(path: Path, options: EngineOptions) -> list[tuple[str, str]]:
    """The fit table of a model opened with `options`: parts, verdict and, where it does not fit, what can be done."""
    from inference.choose_placement import choose_placement
    from inference.fit import advice, fit_table
    from inference.fit_target import find_target
    from inference.placement import describe

    rows: list[tuple[str, str]] = []
    try:
        files, context = _open(path, options)
        target = find_target(options.device, options.dtype, options.gpu_memory)
        table = fit_table(files, context, options.kv, target)
        rows = [(str(row.part), f"{row.what}, {format_bytes(row.bytes)}") for row in table.rows]
        rows += [("fit", table.verdict)]
        if table.fit.fits is False:
            rows += [("advice", advice(files, context, options.kv, target))]
        if target.device == "webgpu":
            kv_device = cast("Device", options.kv_device)
            placement = choose_placement(files, context, options.kv, target, options.gpu_layers, kv_device)
            if placement.reason:
                rows += [("placement", f"{describe(placement)} ({placement.reason})")]
    except DoesNotFit as error:
        rows += [("placement", str(error))]
    except GlasschatError as error:
        return [("fit", f"not known: {error}")]
    return rows


class FitFinder:
    """Tells whether a file fits a device, opened with the options that the chat began with.

    The first question about a device looks for it and takes seconds, each about a file some tenths of one: it is asked
    from a worker thread. Answers are kept for as long as the file is the same.
    """

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._targets: dict[str, FitTarget] = {}
        self._fits: dict[tuple[Path, int, str], Fit] = {}

    def __call__(self, path: Path, device: str) -> Fit:
        """`device` is "webgpu", "cpu", or "" for the one that the options give. Nothing is known of a model that
        cannot be used."""
        with self._lock:
            try:
                key = (path, path.stat().st_mtime_ns, device)
                if key not in self._fits:
                    self._fits[key] = self._find(path, device or self._options.device)
                return self._fits[key]
            except (GlasschatError, OSError):
                return Fit()

    def _find(self, path: Path, device: str) -> Fit:
        from inference.fit import fit_table
        from inference.fit_target import find_target

        options = self._options
        files, context = _open(path, options)
        if device not in self._targets:
            self._targets[device] = find_target(device, options.dtype, options.gpu_memory)
        return fit_table(files, context, options.kv, self._targets[device]).fit


def _open(path: Path, options: EngineOptions) -> tuple[ModelFiles, int]:
    """The model's files and the context that it gets."""
    from inference.loading import OpenOptions, settle_context
    from inference.model_files import open_files

    files = open_files(path, cast("Precision", options.weights))
    asked = OpenOptions(context=options.context, extend_context=options.extend_context)
    return files, settle_context(files.config, asked)
