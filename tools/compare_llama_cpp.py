"""Speed on the processor beside llama.cpp's, in one run, taking turns.

    python tools/compare_llama_cpp.py --model model.gguf --python other/bin/python

llama-cpp-python is not a dependency: `--python` names the interpreter of an environment that has it.
"""

import argparse
import json
import statistics
import subprocess
import sys

from inference import Engine, bench
from inference.catalog import load_catalog

# Random tokens, no sampling: llama.cpp's best case. It answers each line of its input, "decode" or "prefill", with the
# seconds of one run.
PEER = """
import json, random, sys, time
from llama_cpp import Llama
model, threads, depth, generate, prompt = json.loads(sys.argv[1])
context = max(depth + generate, prompt) + 8
llama = Llama(model, n_ctx=context, n_threads=threads, n_threads_batch=threads, verbose=False)
ids = [random.Random(0).randrange(llama.n_vocab()) for _ in range(context)]
for line in sys.stdin:
    llama.reset()
    if line.strip() == "prefill":
        steps = [ids[:prompt]]
    else:
        llama.eval(ids[: depth + 1])
        steps = [[token] for token in ids[depth + 1 : depth + 1 + generate]]
    start = time.perf_counter()
    for step in steps:
        llama.eval(step)
    print(time.perf_counter() - start, flush=True)
"""


class Peer:
    """llama.cpp in a process of its own, which waits while the other one runs."""

    def __init__(self, python: str, model: str, threads: int, depth: int, generate: int, prompt: int) -> None:
        request = json.dumps([model, threads, depth, generate, prompt])
        self._tokens = {"decode": generate, "prefill": prompt}
        self._process = subprocess.Popen(
            [python, "-c", PEER, request], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def speed(self, phase: str) -> float:
        """Tokens per second of one run of "decode" or "prefill"."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            print(phase, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            sys.exit(f"llama.cpp ended with code {self._process.wait()}; is llama-cpp-python installed there?")
        return self._tokens[phase] / float(answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed on the processor beside llama.cpp's.")
    parser.add_argument("--model", default=load_catalog().starter, help="a GGUF model (default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has llama-cpp-python")
    parser.add_argument("--threads", type=int, default=2, help="for llama.cpp (default: 2)")
    parser.add_argument("--depth", type=int, default=16, help="tokens in the cache before decoding (default: 16)")
    parser.add_argument("--gen", type=int, default=64, help="tokens to decode in a run (default: 64)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens to prefill in a run (default: 512)")
    parser.add_argument("--runs", type=int, default=5, help="runs of each (default: 5)")
    given = parser.parse_args()

    engine = Engine.open(given.model, device="cpu")
    peer = Peer(given.python, engine.info.path, given.threads, given.depth, given.gen, given.prompt)
    speeds: dict[str, list[tuple[float, float]]] = {"decode": [], "prefill": []}
    for phase in speeds:
        peer.speed(phase)  # once beforehand, as the bench does too
    for turn in range(given.runs):
        report = bench.run(engine, prompts=(given.prompt,), generate=given.gen, depths=(given.depth,), repeats=1)
        for phase, ours in (("decode", report.decode[0].tps), ("prefill", report.prefill[0].tps)):
            theirs = peer.speed(phase)
            speeds[phase].append((ours, theirs))
            print(f"run {turn + 1}, {phase}: Glasschat {ours:.1f} tokens/s, llama.cpp {theirs:.1f} tokens/s")
    peer.close()
    engine.close()
    # On a machine that others use too, the best runs tell more: threads that wait for each other suffer the most.
    for phase, pairs in speeds.items():
        for name, of in (("median", statistics.median), ("best", max)):
            ours, theirs = (of(each) for each in zip(*pairs, strict=True))
            print(
                f"{phase}, {name}: Glasschat {ours:.1f} tokens/s, llama.cpp {theirs:.1f} tokens/s, "
                f"ratio {ours / theirs:.3f}"
            )


if __name__ == "__main__":
    main()
