"""What WebGPU offers on this machine, asked in a process of its own: a broken driver may end or hang the process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inference.errors import GlasschatError

TIMEOUT_S = 60.0


@dataclass(frozen=True)
class GpuSurvey:
    """The adapters, what kernels may rely on of the chosen one, and what `--device auto` takes.

    `native_version` is that of wgpu-native. `adapters` holds the fields of AdapterReport, `caps` those of
    DeviceCaps (None where no device opens). `raw_encoding` tells whether the raw C functions are in use.
    `problem` says what went wrong, "" if nothing.
    """

    native_version: str = ""
    adapters: tuple[dict[str, Any], ...] = ()
    caps: dict[str, Any] | None = None
    raw_encoding: bool = False
    device: str = "cpu"
    device_reason: str = ""
    problem: str = ""


def survey(timeout_s: float = TIMEOUT_S) -> GpuSurvey:
    """Look at the GPU from a child process. Raises nothing: `problem` says how the child ended."""
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)])}
    command = [sys.executable, "-m", "inference.gpu.survey"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, timeout=timeout_s
        )
        answer = json.loads(done.stdout)
        return GpuSurvey(**answer | {"adapters": tuple(answer["adapters"])})
    except subprocess.TimeoutExpired:
        what = f"did not answer within {timeout_s:.0f} s"
    except (ValueError, TypeError, LookupError):
        said = next((line.strip() for line in reversed(done.stderr.splitlines()) if line.strip()), "it said nothing")
        what = f"ended the process with code {done.returncode} ({said})"
    except OSError as error:
        what = f"could not be asked ({error})"
    return _failed(what)


def look() -> GpuSurvey:
    """The survey, in this process. Raises nothing, as far as the driver lets Python go on."""
    try:
        from wgpu.backends import wgpu_native

        from inference.gpu.device import choose_adapter, describe_adapters, describe_caps, open_device
        from inference.gpu.encoder import PassEncoder
        from inference.gpu.probes import probe_subgroups
        from inference.loading import choose_device

        adapters = tuple(asdict(report) for report in describe_adapters())
        choice = choose_device("auto")
    except Exception as error:
        return _failed(f"failed ({type(error).__name__}: {error})")
    caps, problem = None, ""
    try:
        adapter, _ = choose_adapter()
        device = open_device(adapter)
        caps = asdict(describe_caps(adapter, device, *probe_subgroups(device)))
    except GlasschatError as error:
        problem = str(error)
    except Exception as error:
        problem = f"opening a WebGPU device failed ({type(error).__name__}: {error}); update the graphics driver"
    return GpuSurvey(wgpu_native.__version__, adapters, caps, PassEncoder().raw, choice.device, choice.reason, problem)


def _failed(what: str) -> GpuSurvey:
    problem = f"WebGPU {what}; update the graphics driver, or use --device cpu"
    return GpuSurvey(device_reason="WebGPU does not work here", problem=" ".join(problem.split()))


if __name__ == "__main__":
    print(json.dumps(asdict(look())))
