"""Seconds from starting `chat ask` to the first word of its answer, with everything in the page cache.

python tools/time_start.py --device cpu
"""

import argparse
import statistics
import subprocess
import sys
import time

from inference.catalog import load_catalog

CHAT = (sys.executable, "-c", "import sys; from app.cli import main; sys.exit(main())", "ask")


def first_word_s(arguments: list[str]) -> float:
    """Seconds of one run; the rest of the answer is not waited for."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [*CHAT, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    begun = process.stdout.read(1)
    seconds = time.perf_counter() - start
    process.terminate()
    _, said = process.communicate()
    if not begun:
        sys.exit(f"chat ask ended with code {process.returncode}: {said.decode(errors='replace').strip()}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds from starting `chat ask` to the first word of its answer.")
    parser.add_argument(
        "--model", default=load_catalog().starter, help="a model by name or path (default: %(default)s)"
    )
    parser.add_argument("--device", default="cpu", choices=("auto", "webgpu", "cpu"), help="default: cpu")
    parser.add_argument("--runs", type=int, default=5, help="default: 5")
    given = parser.parse_args()

    arguments = ["Say hello", "-m", given.model, "--device", given.device, "--temperature", "0"]
    first_word_s(arguments)  # fills the page cache
    runs = [first_word_s(arguments) for _ in range(given.runs)]
    print(f"chat ask, {given.model}, {given.device}: first word after {statistics.median(runs):.2f} s (median)")
    print(f"best {min(runs):.2f} s; all: {', '.join(f'{seconds:.2f}' for seconds in runs)}")


if __name__ == "__main__":
    main()
