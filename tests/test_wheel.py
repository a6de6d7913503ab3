"""The wheel, installed in an empty environment, has all its files and runs."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
PACKAGES = ("app", "assets", "inference", "shaders")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts' folder of a new virtual environment that has the wheel and what it depends on, freshly installed."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    subprocess.run(
        [*PIP, "--python", str(folder / "bin" / "python"), "install", "--no-compile", str(wheel)], check=True
    )
    return folder / "bin"


def run(scripts: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the environment in an empty folder with an empty home."""
    home = folder / "home"
    home.mkdir()
    kept = {name: os.environ[name] for name in ("PATH", "XDG_RUNTIME_DIR") if name in os.environ}
    return subprocess.run(
        [str(scripts / command[0]), *command[1:]],
        cwd=folder,
        env={**kept, "HOME": str(home)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def test_the_wheel_holds_every_file_of_its_packages(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    kinds = (".py", ".toml", ".tcss", ".txt", ".wgsl")
    files = [path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*")]
    assert {file.as_posix() for file in files if file.suffix in kinds} <= packed
    assert {name.partition("/")[0] for name in packed if not name.startswith("glasschat-")} == set(PACKAGES)


def test_it_runs_from_its_own_files(scripts: Path, tmp_path: Path, tiny: Callable[[str], Path]) -> None:
    """One test, since making the environment takes most of the time."""
    for name in ("import", "doctor", "ask"):
        (tmp_path / name).mkdir()
    code = "import app, inference; print(app.__file__, inference.__file__)"
    done = run(scripts, tmp_path / "import", "python", "-c", code)
    assert done.stdout.count(str(scripts.parent)) == 2, done.stdout + done.stderr

    done = run(scripts, tmp_path / "doctor", "chat", "doctor", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)

    family = tiny("llama")
    greedy = json.loads((family / "golden.json").read_text(encoding="utf-8"))["greedy"]["a"]
    options = ["--raw", "--json", "--device", "cpu", "--temperature", "0", "--max-tokens", "4"]
    model = str(family / "gguf" / "model-f16.gguf")
    done = run(scripts, tmp_path / "ask", "chat", "ask", greedy["text"], "-m", model, *options)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["prompt_tokens"] == greedy["prompt"]
    assert answer["output_tokens"] == greedy["tokens"][:4]
    assert (answer["device"], answer["finish_reason"]) == ("cpu", "length")
