"""The doctor's report: what it tells of this machine, and that nothing on it makes the report fail."""

import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from inference import doctor
from inference.catalog import load_catalog
from inference.gpu import survey as gpu_survey
from inference.gpu.survey import GpuSurvey
from inference.hub import Store

ADAPTER = {
    "name": "Paper 9",
    "backend": "Vulkan",
    "type": "DiscreteGPU",
    "software": False,
    "features": ["shader-f16"],
    "limits": {"max-buffer-size": 1 << 30},
    "chosen": True,
    "reason": "chosen: the best GPU here",
}
CAPS = {"software": False, "f16": True, "timestamps": False, "subgroup_size": 32, "subgroup_reason": ""}
WORKING = GpuSurvey("29.0", (ADAPTER,), CAPS, True, "webgpu", "chosen: the best GPU here")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[GpuSurvey], None]:
    """Sets what the survey finds."""
    return lambda found: monkeypatch.setattr(doctor, "survey", lambda: found)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Puts a shell script in the place of the Python that the survey starts."""

    def replace(script: str) -> None:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(sys, "executable", str(path))

    return replace


def values(report: doctor.DoctorReport, label: str) -> list[str]:
    return [value for name, value in report.rows if name == label]


def test_a_working_gpu_gives_its_facts_and_no_problem(gpu: Callable[[GpuSurvey], None], store: Store) -> None:
    gpu(WORKING)
    report = doctor.report(store)
    assert values(report, "adapter") == ["Paper 9, Vulkan, DiscreteGPU; chosen: the best GPU here"]
    assert values(report, "  limits") == ["max-buffer-size 1,073,741,824"]
    assert values(report, "device auto") == ["webgpu: chosen: the best GPU here"]
    assert values(report, "subgroups") == ["32 wide at the least, by a probe"]
    assert values(report, "GPU timestamps") == ["no: kernels cannot be timed one by one"]
    assert values(report, "problem") == ["none found"]
    assert f"Python {sys.version.split()[0]}" in values(report, "versions")[0]
    assert "wgpu-native 29.0" in values(report, "versions")[0]
    assert all(isinstance(part, str) for row in report.rows for part in row)


def test_the_report_is_plain_data(gpu: Callable[[GpuSurvey], None], store: Store) -> None:
    gpu(WORKING)
    data = json.loads(json.dumps(doctor.report(store).to_json()))
    assert data["gpu"]["adapters"][0]["name"] == "Paper 9"
    assert data["problems"] == []


def test_slow_encoding_and_software_are_problems(gpu: Callable[[GpuSurvey], None], store: Store) -> None:
    gpu(GpuSurvey("29.0", (ADAPTER,), CAPS | {"software": True, "subgroup_size": 0, "subgroup_reason": "why"}))
    report = doctor.report(store)
    assert len(report.problems) == 2
    assert "only software" in report.problems[0]
    assert "three times" in report.problems[1]
    assert values(report, "subgroups") == ["not used: why"]


def test_installed_models_have_their_sizes(gpu: Callable[[GpuSurvey], None], store: Store) -> None:
    gpu(WORKING)
    starter = load_catalog().models[0]
    store.folder.mkdir()
    file = store.folder / starter.file
    with file.open("wb") as sparse:
        sparse.truncate(starter.bytes)
    report = doctor.report(store)
    assert [(model.name, model.bytes) for model in report.models] == [(starter.name, starter.bytes)]
    assert values(report, "model") == [f"{starter.name}, 93.8 MiB, {file}"]


def test_no_model_offline_is_a_problem(
    gpu: Callable[[GpuSurvey], None], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    gpu(WORKING)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    report = doctor.report(store)
    assert report.hub is not None
    assert report.hub.offline
    assert len(report.problems) == 1
    assert "HF_HUB_OFFLINE" in report.problems[0]


def test_a_cache_that_is_a_file_is_a_problem(gpu: Callable[[GpuSurvey], None], tmp_path: Path) -> None:
    gpu(WORKING)
    taken = tmp_path / "taken"
    taken.write_text("not a folder")
    report = doctor.report(Store(taken, tmp_path / "hub"))
    assert values(report, "folder, models")[0].endswith("not writable")
    assert [problem.partition(" cannot")[0] for problem in report.problems] == [str(taken)]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_cache_is_a_problem(gpu: Callable[[GpuSurvey], None], tmp_path: Path) -> None:
    gpu(WORKING)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    assert doctor.report(Store(closed / "own", closed / "hub")).problems


def test_what_fails_to_read_becomes_a_problem(
    gpu: Callable[[GpuSurvey], None], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("the first line\nthe second")

    gpu(WORKING)
    monkeypatch.setattr(doctor, "load_catalog", fail)
    report = doctor.report(store)
    assert report.problems == ("the installed models could not be read (RuntimeError: the first line the second)",)
    assert values(report, "device auto")


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo boom >&2; kill -SEGV $$", "ended the process with code -11 (boom)"),
        ("exit 3", "ended the process with code 3 (it said nothing)"),
        ("echo '{}'", "ended the process with code 0"),
        ("echo '[1]'", "ended the process with code 0"),
        ("exec sleep 30", "did not answer within"),
    ],
)
def test_a_driver_that_ends_or_hangs_the_process_is_a_problem(
    child: Callable[[str], None], store: Store, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    child(script)
    monkeypatch.setattr(doctor, "survey", lambda: gpu_survey.survey(timeout_s=2))
    report = doctor.report(store)
    assert report.gpu.device == "cpu"
    assert values(report, "adapter") == ["none"]
    assert len(report.problems) == 1
    assert said in report.problems[0]


def test_a_python_that_cannot_start_is_a_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    assert "could not be asked" in gpu_survey.survey().problem


def test_without_adapters_the_cpu_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES", "__EGL_VENDOR_LIBRARY_FILENAMES"):
        monkeypatch.setenv(variable, os.devnull)
    found = gpu_survey.survey()
    if found.adapters:
        pytest.skip("this system finds adapters by other ways than the loaders of Vulkan and EGL")
    assert found.device == "cpu"
    assert found.caps is None
    assert "no WebGPU adapter was found" in found.problem


@pytest.mark.gpu
def test_the_survey_finds_what_this_machine_has() -> None:
    from inference.gpu.device import describe_adapters

    found = gpu_survey.survey()
    expected = describe_adapters()
    assert [(each["name"], each["backend"]) for each in found.adapters] == [
        (each.name, each.backend) for each in expected
    ]
    assert found.caps is not None
    assert found.problem == ""
    assert found.native_version
    assert found.device == ("cpu" if found.caps["software"] else "webgpu")
