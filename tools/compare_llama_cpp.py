"""Decode speed on the processor beside llama.cpp's, in one run, taking turns.

    python tools/compare_llama_cpp.py model.gguf --python other/bin/python

llama-cpp-python is not a dependency: `--python` names the interpreter of an environment that has it.
"""

import argparse
import json
import statistics
import subprocess
import sys

from inference import Engine, bench

# Random tokens, no sampling: llama.cpp's best case. It answers each line of its input with the seconds of one run.
PEER = """
import json, random, sys, time
from llama_cpp import Llama
model, threads, depth, generate = json.loads(sys.argv[1])
llama = Llama(model, n_ctx=depth + generate + 8, n_threads=threads, n_threads_batch=threads, verbose=False)
ids = [random.Random(0).randrange(llama.n_vocab()) for _ in range(depth + generate + 1)]
for _ in sys.stdin:
    llama.reset()
    llama.eval(ids[: depth + 1])
    start = time.perf_counter()
    for token in ids[depth + 1 :]:
        llama.eval([token])
    print(time.perf_counter() - start, flush=True)
"""


class Peer:
    """llama.cpp in a process of its own, which waits while the other one runs."""

    def __init__(self, python: str, model: str, threads: int, depth: int, generate: int) -> None:
        request = json.dumps([model, threads, depth, generate])
        self._generate = generate
        self._process = subprocess.Popen(
            [python, "-c", PEER, request], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def speed(self) -> float:
        """Tokens per second of one run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print("go", file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            sys.exit(f"llama.cpp ended with code {self._process.wait()}; is llama-cpp-python installed there?")
        return self._generate / float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description="Decode speed on the processor beside llama.cpp's.")
    parser.add_argument("model", help="a GGUF file")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2, help="for llama.cpp (default: 2)")
    parser.add_argument("--depth", type=int, default=16, help="tokens in the cache before (default: 16)")
    parser.add_argument("--gen", type=int, default=64, help="tokens a run (default: 64)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default: 5)")
    given = parser.parse_args()

    engine = Engine.open(given.model, device="cpu")
    peer = Peer(given.python, given.model, given.threads, given.depth, given.gen)
    peer.speed()  # once beforehand, as the bench does too
    ours, theirs = [], []
    for turn in range(given.runs):
        report = bench.run(engine, prompts=(), generate=given.gen, depths=(given.depth,), repeats=1)
        ours.append(report.decode[0].tps)
        theirs.append(peer.speed())
        print(f"run {turn + 1}: Glasschat {ours[-1]:.1f} tokens/s, llama.cpp {theirs[-1]:.1f} tokens/s")
    peer.close()
    engine.close()
    # On a machine that others use too, the best runs tell more: threads that wait for each other suffer the most.
    for name, of in (("median", statistics.median), ("best", max)):
        mine, other = of(ours), of(theirs)
        print(f"{name}: Glasschat {mine:.1f} tokens/s, llama.cpp {other:.1f} tokens/s, ratio {mine / other:.3f}")


if __name__ == "__main__":
    main()
