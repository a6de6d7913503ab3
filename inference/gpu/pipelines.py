"""WGSL templates -> compute pipelines, each variant compiled once.

Templates are WGSL with jinja2: `${NAME}` is a constant, a line that starts with `//%` is a jinja2
statement, and `//% include "weights.wgsl"` brings in another file of the shaders package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any

import jinja2
import wgpu

from inference.gpu.shader_modules import create_shader_module
from inference.kernels.dispatch import Constant

COMPILERS = 8
"""Threads that compile side by side: a driver takes about 0.1 s for a pipeline that it has not seen before."""

Key = tuple[str, tuple[tuple[str, Constant], ...]]


class PipelineCache:
    """Compiled pipelines of one device, by shader and constants."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._pipelines: dict[Key, Any] = {}
        self._layouts: dict[Any, Any] = {}

    def compile(self, wanted: Iterable[tuple[str, Mapping[str, Constant]]]) -> None:
        """Compile what is missing of these shaders with these constants, several at a time. Raises as `get`."""
        missing = {_key(*each): each for each in wanted}
        missing = {key: each for key, each in missing.items() if key not in self._pipelines}
        with ThreadPoolExecutor(COMPILERS, thread_name_prefix="compile") as threads:
            compiled = threads.map(lambda each: self._compile(*each), missing.values())
            self._pipelines |= zip(missing, compiled, strict=True)

    def get(self, shader: str, constants: Mapping[str, Constant]) -> Any:
        """The pipeline of shaders/`shader` rendered with `constants`; compiled on first use.

        Raises RuntimeError with the compiler's message and the rendered source where it does not compile.
        """
        key = _key(shader, constants)
        if key not in self._pipelines:
            self._pipelines[key] = self._compile(shader, constants)
        return self._pipelines[key]

    def layout(self, pipeline: Any) -> Any:
        """The layout of the pipeline's bind group 0, asked for once."""
        if pipeline not in self._layouts:
            self._layouts[pipeline] = pipeline.get_bind_group_layout(0)
        return self._layouts[pipeline]

    def __len__(self) -> int:
        return len(self._pipelines)

    def _compile(self, shader: str, constants: Mapping[str, Constant]) -> Any:
        code = render_shader(shader, constants)
        try:
            module = create_shader_module(self._device, code, shader)
            return self._device.create_compute_pipeline(
                layout="auto", compute={"module": module, "entry_point": "main"}, label=shader
            )
        except (wgpu.GPUError, RuntimeError) as error:
            raise RuntimeError(f"shaders/{shader} with {dict(constants)} does not compile: {error}\n{code}") from error


def _key(shader: str, constants: Mapping[str, Constant]) -> Key:
    return shader, tuple(sorted(constants.items()))


def render_shader(shader: str, constants: Mapping[str, Constant]) -> str:
    """The WGSL of shaders/`shader` for these constants. Raises jinja2.UndefinedError for a missing constant."""
    return _environment.get_template(shader).render(constants)


def _load_source(name: str) -> str | None:
    path = files("shaders").joinpath(name)
    return path.read_text(encoding="utf-8") if path.is_file() else None


_environment = jinja2.Environment(
    loader=jinja2.FunctionLoader(_load_source),
    variable_start_string="${",
    variable_end_string="}",
    line_statement_prefix="//%",
    undefined=jinja2.StrictUndefined,
    autoescape=False,
)
