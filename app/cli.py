"""The `chat` command: arguments to one of the screen, ask, models, doctor and bench.

Exit codes: 0 done; 1 the work failed, with one line on stderr; 2 wrong usage; 130 interrupted.
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.settings import (
    Sources,
    history_path,
    load_settings,
    log_path,
    read_sources,
    save_settings,
    settings_path,
    with_model,
)

if TYPE_CHECKING:
    from app.terminal import ProgressLine as Progress
    from inference import Engine

Given = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    from app.ask import UsageError
    from app.stderr_guard import native_stderr_to_log, start_log
    from inference.errors import GlasschatError

    parser = _parser()
    flags = vars(parser.parse_args(argv))
    sources = read_sources(settings_path(), os.environ, flags)
    log = start_log(log_path())
    with native_stderr_to_log(log):
        try:
            if flags.get("raw") and flags.get("system"):
                raise UsageError("--raw sends the text alone; it cannot be used with --system")
            if flags.get("resume") and not _has_screen(flags):
                raise UsageError("--continue needs a terminal, and no other command beside it")
            code = _command(flags, sources)(sources.given | flags)
            sys.stdout.flush()
            return code
        except UsageError as error:
            _complain(str(error))
            return 2
        except GlasschatError as error:
            _complain(str(error))
            return 1
        except KeyboardInterrupt:
            print(file=sys.stderr)
            return 130
        except BrokenPipeError:
            # Whoever read the output has enough.
            _silence_stdout()
            return 0
        except Exception as error:
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                _silence_stdout()
                _complain(f"{error.filename or 'the output'} could not be written: the disk is full")
                return 1
            logging.getLogger(__name__).exception("unexpected error")
            _complain(f"unexpected error, {type(error).__name__}: {error}; the details are in {log}")
            return 1


def _silence_stdout() -> None:
    """Python must not complain at exit about what is left in the buffer."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _complain(message: str) -> None:
    from app.sanitize import visible

    print("chat: " + " ".join(visible(message).split()), file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    from app.options import counts, model_options, positive, request_options
    from inference.shapes import SHAPES

    model, request = model_options(), request_options()
    parser = argparse.ArgumentParser(
        prog="chat", description="Talk with a language model on your own machine.", parents=[model, request]
    )
    parser.add_argument(
        "--continue",
        action="store_true",
        default=argparse.SUPPRESS,
        dest="resume",
        help="go on with the last conversation",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    ask = commands.add_parser("ask", help="one prompt, one answer, no screen", parents=[model, request])
    ask.add_argument("prompt", nargs="?", metavar="PROMPT|-", help="the prompt; - or a pipe reads it from stdin")
    ask.add_argument("--raw", action="store_true", help="send the text without a chat template")
    ask.add_argument("--json", action="store_true", help="print one JSON object with the text, ids and figures")

    models = commands.add_parser("models", help="list, fetch and remove models")
    actions = models.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", help="the models on this machine and those of the catalogue (the default)")
    named = "a catalogue name; or org/repo, org/repo:Q4_K_M or org/repo/file.gguf on the hub, each with @REVISION"
    told = "what is known of a model, and whether it fits when it is opened with these options"
    for action, what, parents in (
        ("pull", "fetch a model", []),
        ("info", told, [model]),
        ("rm", "delete its files", []),
    ):
        actions.add_parser(action, help=what, description=what, parents=parents).add_argument("name", help=named)

    doctor = commands.add_parser("doctor", help="what this machine offers", parents=[model])
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.add_argument("--plan", action="store_true", help="print the model's plan: each operation as it would run")

    bench = commands.add_parser("bench", help="measure speed and memory", parents=[model_options(several_layouts=True)])
    lengths, usual = counts(least=1), "less on a software adapter"
    bench.add_argument("--prompt", type=lengths, metavar="N,N", help=f"prompt lengths (128,512; {usual})")
    bench.add_argument("--gen", type=positive, metavar="N", help=f"tokens to generate (64; {usual})")
    bench.add_argument("--depth", type=counts(least=0), metavar="N,N", help="tokens in the cache (0)")
    batch = "measure so many sequences decoded together, beside one alone"
    bench.add_argument("--batch", type=lengths, metavar="N,N", help=batch)
    shape = bench.add_mutually_exclusive_group()
    random = "measure a model of this shape with random weights (q4_0, or as --weights says) that are made here"
    shape.add_argument("--random", choices=tuple(SHAPES), help=random)
    matmul = "measure matmuls of one row in each format, with matrices of this shape (default: 8b)"
    shape.add_argument("--matmul", nargs="?", const="8b", choices=tuple(SHAPES), help=matmul)
    trace = "also write a timeline of a reply, and of each operation of a step, as a Chrome trace (JSON) to this file"
    bench.add_argument("--trace", metavar="FILE", type=Path, help=trace)
    bench.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _has_screen(flags: Given) -> bool:
    return flags["command"] is None and sys.stdin.isatty() and sys.stdout.isatty()


def _command(flags: Given, sources: Sources) -> Callable[[Given], int]:
    if _has_screen(flags):
        return lambda given: _screen(given, sources)
    for notice in sources.notices:
        _complain(notice)
    match flags["command"]:
        case "ask":
            return _ask
        case "models":
            return _models
        case "doctor":
            return _doctor
        case "bench":
            return _bench
    return _ask


def _open(path: str, given: Given, progress: Any) -> Engine:
    from dataclasses import asdict

    from app.options import engine_options
    from inference import Engine

    return Engine.open(path, **asdict(engine_options(given)), progress=progress)


@contextmanager
def _located(given: Given) -> Iterator[tuple[str, Progress]]:
    """The file of the model named, or of the last one used, or of the starter, fetched if needed; and a progress line.

    Remembers which model it was, once what is done with it has gone well.
    """
    from app.model_list import resolve_model
    from app.terminal import ProgressLine
    from inference.catalog import load_catalog
    from inference.hub import default_store

    catalog, progress = load_catalog(), ProgressLine()
    name = given.get("model") or catalog.starter
    try:
        yield resolve_model(name, progress, lambda: False, catalog=catalog, store=default_store()), progress
    finally:
        progress.wipe()
    saved, _ = load_settings(settings_path())
    if notice := save_settings(with_model(saved, name), settings_path()):
        _complain(notice)


@contextmanager
def _opened(given: Given) -> Iterator[Engine]:
    """The engine of `_located`'s model."""
    with _located(given) as (path, progress):
        engine = _open(path, given, progress)
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def _opened_random(given: Given) -> Iterator[Engine]:
    """The engine of a model with random weights."""
    from dataclasses import asdict

    from app.options import engine_options
    from app.terminal import ProgressLine
    from inference.loading import OpenOptions
    from inference.random_model import open_random

    progress = ProgressLine()
    try:
        engine = open_random(given["random"], OpenOptions(**asdict(engine_options(given))), progress)
    finally:
        progress.wipe()
    try:
        yield engine
    finally:
        engine.close()


def _ask(given: Given) -> int:
    from app.ask import Question, ask, read_question
    from app.options import sampling_options
    from app.terminal import ProgressLine

    raw = given.get("raw", False)
    question = Question(
        text=read_question(given.get("prompt")),
        system="" if raw else given.get("system", ""),
        raw=raw,
        max_tokens=given.get("max_tokens"),
        sampling=sampling_options(given),
        as_json=given.get("json", False),
    )
    with _opened(given) as engine:
        return ask(engine, question, ProgressLine())


def _screen(given: Given, sources: Sources) -> int:
    from functools import partial

    from app.chat_app import ChatApp
    from app.engine_thread import EngineThread
    from app.fit_report import FitFinder
    from app.model_list import model_entries, resolve_adapter, resolve_usable_model
    from app.options import engine_options, sampling_options
    from app.start import Start
    from app.store.store import Store
    from inference.catalog import load_catalog
    from inference.hub import default_store

    catalog, models = load_catalog(), default_store()
    kept = history_path() if given.get("history", True) else None
    first = kept is not None and not kept.exists()
    history = Store(kept)
    start = Start(
        model=given.get("model", ""),
        sampling=sampling_options(given),
        max_tokens=given.get("max_tokens"),
        system=given.get("system", ""),
        kv=given.get("kv", "auto"),
        gpu_layers=given.get("gpu_layers"),
        loras=tuple(given.get("loras", ())),
        device=given.get("device", "auto").replace("auto", ""),
        editor=sources.editor,
        resume=given.get("resume", False),
        notices=sources.notices,
        guide=first,
    )
    engine = EngineThread(
        partial(resolve_usable_model, catalog=catalog, store=models),
        lambda path, kv, progress, **options: _open(path, given | {"kv": kv, "loras": ()} | options, progress),
        partial(resolve_adapter, store=models),
    )
    list_models, find_fit = partial(model_entries, catalog, models), FitFinder(engine_options(given))
    app = ChatApp(engine, history, list_models, find_fit, sources, start)
    app.run()
    if lost := history.close():
        _complain(lost)
    if app.return_code:
        _complain(f"the screen broke off on an unexpected error; the details are in {log_path()}")
    return app.return_code or 0


def _models(given: Given) -> int:
    from app import models_command
    from app.options import engine_options
    from inference.catalog import load_catalog
    from inference.hub import default_store

    catalog, store = load_catalog(), default_store()
    match given["action"]:
        case "pull":
            return models_command.pull(given["name"], catalog, store)
        case "info":
            return models_command.info(given["name"], catalog, store, engine_options(given))
        case "rm":
            return models_command.remove(given["name"], catalog, store)
    return models_command.show_list(catalog, store)


def _doctor(given: Given) -> int:
    from app import reports

    if not given["plan"]:
        return reports.doctor(given["json"])
    with _opened(given) as engine:
        return reports.plan(engine, given["json"])


def _bench(given: Given) -> int:
    from app import reports
    from app.ask import UsageError

    prompts, generate, depths, layouts = given["prompt"], given["gen"], given["depth"], given.get("kv")
    if (trace := given["trace"]) is not None:
        from inference.trace import check_place

        if given["matmul"] or given["batch"] or isinstance(layouts, tuple):
            raise UsageError("--trace is of one model with one KV layout, without --matmul or --batch")
        check_place(trace)
    if given["matmul"]:
        if prompts or generate or depths or given["batch"]:
            raise UsageError("--matmul takes no --prompt, --gen, --depth or --batch: it runs no model")
        if given.get("device") == "cpu":
            raise UsageError("--matmul measures WebGPU; use it without --device cpu, or with --device webgpu")
        return reports.bench_matmul(given["matmul"], given["json"])
    if given["random"] and isinstance(layouts, tuple):
        raise UsageError("KV layouts are compared on a text, which a model with random weights does not know")
    if not isinstance(layouts, tuple):
        if (batch := given["batch"]) and (prompts or (depths and len(depths) > 1)):
            raise UsageError("--batch takes no --prompt, and one --depth")
        with _opened_random(given) if given["random"] else _opened(given) as engine:
            if batch:
                return reports.bench_batch(engine, batch, depths[0] if depths else 0, generate, given["json"])
            return reports.bench(engine, prompts, generate, depths or (0,), given["json"], trace)
    if prompts is not None or given["batch"] or (depths and len(depths) > 1):
        raise UsageError("a comparison of KV layouts takes no --prompt and no --batch, and one --depth")
    with _located(given) as (path, progress):

        def open_engine(layout: str, device: str | None) -> Engine:
            whole = {"device": device, "gpu_layers": None, "kv_device": "webgpu"} if device else {}
            return _open(path, given | {"kv": layout} | whole, progress)

        return reports.bench_layouts(open_engine, layouts, depths and depths[0], generate, given["json"])
