"""The command line without a model: what is asked, what is printed, and the exit codes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import app.cli
from app.ask import Question, ask
from app.terminal import ProgressLine
from inference.engine import Engine
from inference.errors import BadModelFile
from inference.thinking import KNOWN_MARKS
from tests.app.scripted_engine import PIECE, Script, ScriptedEngine

ROOT = Path(__file__).parents[2]


class Terminal(io.TextIOWrapper):
    """A stdin that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def homeless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home; what the command remembers lands there."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "HF_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


@pytest.fixture
def chat(homeless: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """`chat(*arguments, script=..., stdin=...)` runs the command over a scripted engine; its exit code."""
    chat_calls: list[dict[str, Any]] = []

    def run(
        *arguments: str, script: Script | None = None, stdin: str | None = "", opened: Exception | None = None
    ) -> int:
        def open_engine(path: str, **options: Any) -> ScriptedEngine:
            chat_calls.append({"path": path} | options)
            if opened is not None:
                raise opened
            run.engine = ScriptedEngine(script or Script())  # type: ignore[attr-defined]
            return run.engine  # type: ignore[attr-defined]

        monkeypatch.setattr(Engine, "open", open_engine)
        kind = io.TextIOWrapper if stdin is not None else Terminal
        monkeypatch.setattr(sys, "stdin", kind(io.BytesIO((stdin or "").encode())))
        return app.cli.main(arguments)

    run.calls = chat_calls  # type: ignore[attr-defined]
    return run


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def test_ask_prints_the_text_alone(chat: Any, model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert chat("ask", "hello", "-m", model) == 0
    assert capfd.readouterr() == ("Hello there!\n", "")
    assert chat.engine.closed


def test_prompt_and_piped_input_are_joined_by_an_empty_line(chat: Any, model: str) -> None:
    assert chat("ask", "Explain:", "-m", model, stdin="line 1\nline 2\n") == 0
    assert chat.engine.tokenizer.decode(chat.engine.prompts[0][1:]) == "user: Explain:\n\nline 1\nline 2"


@pytest.mark.parametrize("arguments", [("ask", "-"), ("ask",), ()])
def test_piped_input_alone_is_the_prompt(chat: Any, model: str, arguments: tuple[str, ...]) -> None:
    assert chat("-m", model, *arguments, stdin="hi\n") == 0
    assert chat.engine.tokenizer.decode(chat.engine.prompts[0][1:]) == "user: hi"


def test_raw_sends_the_text_without_a_template(chat: Any, model: str) -> None:
    assert chat("ask", "Once", "--raw", "-m", model) == 0
    assert chat.engine.prompts[0] == [1, *map(ord, "Once")]


def test_json_has_the_whole_contract(chat: Any, model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert chat("ask", "hello", "--json", "-m", model, "--max-tokens", "2", "--system", "Be brief.") == 0
    out, err = capfd.readouterr()
    result = json.loads(out)
    assert err == ""
    assert list(result) == [
        "model", "device", "adapter", "prompt_tokens", "output_tokens", "text", "finish_reason", "timings", "memory",
        "kv", "kernels",
    ]  # fmt: skip
    assert chat.engine.tokenizer.decode(result["prompt_tokens"][1:]) == "system: Be brief. user: hello"
    assert result["output_tokens"] == [PIECE, PIECE + 1]
    assert (result["text"], result["finish_reason"]) == ("Hello there", "length")
    assert set(result["timings"]) == {"load_s", "prefill_s", "prefill_tps", "decode_s", "decode_tps", "ttft_s"}
    assert set(result["memory"]) == {"weights_bytes", "kv_bytes", "scratch_bytes", "peak_bytes"}
    assert set(result["kv"]) == {"layout", "capacity_bytes", "allocated_bytes", "used_bytes", "tokens"}
    assert [set(kernel) for kernel in result["kernels"]] == [{"op", "variant", "reason"}]


def test_options_reach_the_engine_from_both_sides_of_the_command(chat: Any, model: str) -> None:
    arguments = ("--context", "64", "ask", "x", "-m", model, "--device", "cpu", "--gpu-memory", "2G", "--dtype", "f32")
    more = ("--kv", "tiered-int8", "--gpu-layers", "3", "--kv-device", "cpu")
    assert chat(*arguments, "--kernels", "force:tiled", "--extend-context", *more) == 0
    call = chat.calls[0]
    assert (call["context"], call["device"], call["gpu_memory"]) == (64, "cpu", 2 << 30)
    assert (call["dtype"], call["kernels"], call["extend_context"]) == ("f32", ("force:tiled",), True)
    assert (call["kv"], call["gpu_layers"], call["kv_device"]) == ("tiered-int8", 3, "cpu")


def test_the_last_model_used_is_used_again(chat: Any, model: str) -> None:
    assert chat("ask", "x", "-m", model) == 0
    assert chat("ask", "x") == 0
    assert [call["path"] for call in chat.calls] == [model, model]


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask",),
        ("ask", "x", "--raw", "--system", "y"),
        ("ask", "x", "--temperature", "-1"),
        ("ask", "x", "--top-p", "2"),
        ("ask", "x", "--max-tokens", "0"),
        ("ask", "x", "--top-k", "-1"),
        ("ask", "x", "--gpu-memory", "lots"),
        ("ask", "x", "--gpu-layers", "some"),
        ("ask", "x", "--kv-device", "disk"),
        ("ask", "x", "--kernels", "tiled"),
        ("ask", "x", "--no-such-option"),
        ("models", "pull"),
        ("bench", "--prompt", "0"),
        ("bench", "--gen", "0"),
        ("bench", "--kv", "paged,heap"),
        ("bench", "--kv", "all", "--prompt", "5"),
        ("bench", "--kv", "all", "--depth", "5,6"),
        ("bench", "--kv", "all", "--random", "1b"),
        ("bench", "--random", "1b", "--matmul", "1b"),
        ("bench", "--random", "9b"),
        ("bench", "--matmul", "--depth", "5"),
        ("bench", "--matmul", "--trace", "trace.json"),
        ("bench", "--matmul", "--device", "cpu"),
        ("bench", "--batch", "0"),
        ("bench", "--batch", "2", "--prompt", "5"),
        ("bench", "--batch", "2", "--kv", "all"),
        ("bench", "--kv", "all", "--trace", "trace.json"),
        ("ask", "x", "--kv", "heap"),
        ("--continue", "ask", "x"),
        ("--continue",),
    ],
)
def test_wrong_usage_gives_2(chat: Any, model: str, arguments: tuple[str, ...], capfd: Any) -> None:
    try:
        code = chat(*arguments)
    except SystemExit as exit:
        code = exit.code
    assert code == 2
    assert not chat.calls
    assert capfd.readouterr().err


@pytest.mark.parametrize("option", ["--max-tokens", "--temperature", "--top-k", "--top-p", "--seed", "--context"])
def test_what_is_no_number_is_told_in_words(chat: Any, option: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        chat("ask", "x", option, "warm")
    assert re.search(rf"{option}: 'warm' is not a (whole )?number", capfd.readouterr().err)


def test_a_terminal_is_not_read_for_a_prompt(chat: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert chat("ask", stdin=None) == 2
    assert "nothing to ask" in capfd.readouterr().err


def test_an_error_is_one_line_and_1(chat: Any, model: str, capfd: pytest.CaptureFixture[str]) -> None:
    error = BadModelFile(f"{model}: 4 bytes,\nexpected 24 \x1b[2J")
    assert chat("ask", "x", "-m", model, opened=error) == 1
    assert capfd.readouterr() == ("", f"chat: {model}: 4 bytes, expected 24 ␛[2J\n")


def test_a_missing_model_is_one_line_and_1(chat: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert chat("ask", "x", "-m", "no-such-model") == 1
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and "no-such-model" in err


def test_an_unexpected_error_goes_to_the_log(chat: Any, model: str, homeless: Path, capfd: Any) -> None:
    assert chat("ask", "x", "-m", model, opened=ZeroDivisionError("boom")) == 1
    err = capfd.readouterr().err
    assert err.count("\n") == 1 and "boom" in err and "Traceback" not in err


def test_input_that_is_not_text_is_one_line_and_1(chat: Any, model: str, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.setattr("app.ask.sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    run = app.cli.main(["ask", "-", "-m", model])
    assert run == 1
    assert "not UTF-8" in capfd.readouterr().err


def test_text_is_raw_in_a_pipe(chat: Any, model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert chat("ask", "x", "-m", model, script=Script(pieces=("a\x1b[31m", "日本\n"))) == 0
    assert capfd.readouterr().out == "a\x1b[31m日本\n"


THOUGHT = Script(pieces=("<think>", "\nThe moon\x1b", "[2J.\n", "</think>", "\n\nTides."), thinking=KNOWN_MARKS[0])


def test_a_thought_is_not_part_of_the_output(chat: Any, model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert chat("ask", "x", "-m", model, script=THOUGHT) == 0
    assert capfd.readouterr() == ("Tides.\n", "")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_thought_is_shown_dim_on_a_terminal(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert ask(ScriptedEngine(THOUGHT), Question("x", as_json=as_json), ProgressLine()) == 0  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    if as_json:
        assert json.loads(out)["text"] == "".join(THOUGHT.pieces)
        assert err == ""
    else:
        assert out == "Tides.\n"
        assert err.startswith("\x1b[2m") and err.endswith("\x1b[22m")
        assert err.replace("\x1b[2m", "").replace("\x1b[22m", "") == "The moon␛[2J.\n\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [((), "ended its reply after a thought, without an answer"), (("--max-tokens", "2"), "was cut after 2 tokens")],
)
def test_a_thought_without_an_answer_is_said(
    chat: Any, model: str, capfd: Any, arguments: tuple[str, ...], complaint: str
) -> None:
    script = Script(pieces=("The", " moon", "."), thinking=KNOWN_MARKS[0], prompt_end="<think>\n")
    assert chat("ask", "x", "-m", model, *arguments, script=script) == 0
    out, err = capfd.readouterr()
    assert out == "\n"
    assert complaint in err and err.count("\n") == 1


def test_an_interrupt_stops_the_answer_and_gives_130(chat: Any, model: str, capfd: pytest.CaptureFixture[str]) -> None:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    assert chat("ask", "x", "-m", model, script=Script(pieces=("word ",) * 500, tokens_per_s=100)) == 130
    out, err = capfd.readouterr()
    assert out.startswith("word word ") and out.endswith("\n") and len(out) < 1500
    assert err == ""


def test_a_reader_that_leaves_is_no_error(chat: Any, model: str) -> None:
    code = (
        "import sys; from app.cli import main; from inference.engine import Engine\n"
        "from tests.app.scripted_engine import Script, ScriptedEngine\n"
        "Engine.open = lambda path, **options: ScriptedEngine(Script(pieces=('word ' * 50,) * 5000))\n"
        f"sys.exit(main(['ask', 'x', '-m', {model!r}]))"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None and command.stderr is not None
    assert command.stdout.read(4) == b"word"
    command.stdout.close()
    assert command.stderr.read() == b""
    assert command.wait(20) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [("ask", "x"), ("models",)])
def test_a_full_disk_is_one_line_and_1(model: str, homeless: Path, arguments: tuple[str, ...]) -> None:
    code = (
        "import sys; from app.cli import main; from inference.engine import Engine\n"
        "from tests.app.scripted_engine import Script, ScriptedEngine\n"
        "Engine.open = lambda path, **options: ScriptedEngine(Script(pieces=('word',)))\n"
        f"sys.exit(main({[*arguments, *(['-m', model] if arguments[0] == 'ask' else [])]!r}))"
    )
    with Path("/dev/full").open("w") as full:
        run = [sys.executable, "-c", code]
        done = subprocess.run(run, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert "the disk is full" in done.stderr and done.stderr.count("\n") == 1


def test_the_catalogue_is_listed(chat: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert chat("models") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "SIZE", "CONTEXT", "LICENCE", "WHERE"]
    assert any(line.startswith("smollm2-135m-instruct ") and "the starter" in line for line in lines)


def test_a_model_is_described_and_only_fetched_ones_are_removed(chat: Any, model: str, capfd: Any) -> None:
    assert chat("models", "info", "smollm2-135m-instruct") == 0
    assert "not on this machine" in capfd.readouterr().out
    assert chat("models", "rm", model) == 1
    assert Path(model).exists()


def test_the_plan_is_printed(chat: Any, model: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert chat("doctor", "--plan", "-m", model, script=replace(Script(), layers=1)) == 0
    out = capfd.readouterr().out
    assert "decode: 9 operations" in out and "prefill: 9 operations" in out
    assert "q4_1" in out and "not gemv_coop: the adapter lacks cooperative matrices" in out


def test_bench_writes_a_trace(homeless: Path, tiny: Callable[[str], Path], capfd: pytest.CaptureFixture[str]) -> None:
    path = homeless / "trace.json"
    arguments = ("bench", "-m", str(tiny("llama")), "--device", "cpu", "--prompt", "5", "--gen", "2", "--json")
    assert app.cli.main((*arguments, "--trace", str(path))) == 0
    assert json.loads(capfd.readouterr().out)["trace"] == str(path)
    assert any(event["name"] == "token 2" for event in json.loads(path.read_text())["traceEvents"])
    assert app.cli.main((*arguments, "--trace", str(homeless / "none" / "trace.json"))) == 1
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and "cannot be written to" in err
