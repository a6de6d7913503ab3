"""What may import what, and how long a file may be: rules that keep the engine apart from the interface."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_LINES = 400


def sources(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in ROOT.glob(pattern))


def imported_packages(path: Path) -> set[str]:
    """The top-level packages that a file's own import statements name, at any depth in it."""
    packages = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            packages |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    return packages


def loaded_by(modules: list[str]) -> set[str]:
    """The top-level packages loaded in a fresh interpreter after importing the modules."""
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def module_names(package: str) -> list[str]:
    """Every module of a package, as dotted names."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in sources(f"{package}/**/*.py"))
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def test_the_engine_never_loads_the_interface() -> None:
    modules = module_names("inference")
    assert "inference.hub" in modules
    assert not loaded_by(modules) & {"app", "textual"}


@pytest.mark.parametrize("module", ["app.cli", "inference", "inference.catalog", "inference.hub", "inference.errors"])
def test_answering_a_simple_command_loads_nothing_heavy(module: str) -> None:
    assert not loaded_by([module]) & {"wgpu", "textual", "numpy", "tokenizers", "huggingface_hub"}


def test_the_cpu_does_without_what_only_gpus_and_downloads_need() -> None:
    assert not loaded_by(["inference.engine", "inference.cpu.executor"]) & {"wgpu", "huggingface_hub", "filelock"}


@pytest.mark.parametrize(("package", "forbidden"), [("inference", {"app", "textual", "rich"}), ("app", {"wgpu"})])
def test_no_import_statement_crosses_the_border(package: str, forbidden: set[str]) -> None:
    crossing = {
        str(path.relative_to(ROOT)): imported_packages(path) & forbidden
        for path in sources(f"{package}/**/*.py")
        if imported_packages(path) & forbidden
    }
    assert crossing == {}


def test_files_hold_one_idea() -> None:
    folders = ("app", "inference", "shaders", "tests", "tools")
    files = sources(*(f"{folder}/**/*.{kind}" for folder in folders for kind in ("py", "wgsl", "tcss")))
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert len(lengths) > 20
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}
