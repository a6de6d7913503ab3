"""The child process that asks the Hugging Face hub and downloads from it into its shared cache.

Its one argument is a JSON object: `action` ("list" or "fetch"), `kind` ("model" or "adapter"), `repo`, `file` and
`quantization` (or null), `revision`, `cache` (folder) and `sha256` (of the one file, or null). It writes one JSON
object a line: `{"notice"}` and `{"done", "total"}` in bytes while it works, then `{"path"}`, `{"files", "license"}` or
`{"error", "missing"}`; an error reads on after the source's name.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

from inference.errors import FetchFailed
from inference.fetch.choices import Choice, choose, choose_adapter, list_adapters, list_choices
from inference.fetch.disk import megabytes, require_room
from inference.fetch.hub_errors import Refused, explain
from inference.fetch.hub_leftovers import remove_leftovers

# An answer within this time, or the next source is tried.
ANSWER_S = 10
# The library's own 10 MB would move the progress bar once in ten seconds on a slow line.
PROGRESS_BYTES = 256 * 1024


def look_up(request: dict[str, Any]) -> Any:
    """The repository's huggingface_hub.ModelInfo, with sizes and checksums. The library does not retry here: the next
    source should not wait for that."""
    import huggingface_hub

    return huggingface_hub.HfApi().model_info(
        request["repo"], revision=request["revision"], files_metadata=True, timeout=ANSWER_S
    )


def sizes_of(info: Any) -> dict[str, int]:
    return {file.rfilename: file.size or 0 for file in info.siblings or ()}


def license_of(info: Any) -> str | None:
    prefix = "license:"
    return next((tag.removeprefix(prefix) for tag in info.tags or () if tag.startswith(prefix)), None)


def fetch(request: dict[str, Any]) -> Path:
    """Download what of a choice's files is not cached, check each against its SHA-256, return the choice's path."""
    import huggingface_hub
    from huggingface_hub import constants

    constants.DOWNLOAD_CHUNK_SIZE = PROGRESS_BYTES
    repo, revision, cache = request["repo"], request["revision"], Path(request["cache"])
    info = look_up(request)
    choice = the_choice(request, sizes_of(info))
    sums = {file.rfilename: file.lfs.sha256 for file in info.siblings if file.lfs is not None}
    if request["sha256"]:
        sums[choice.files[0]] = request["sha256"]

    def cached(file: str) -> bool:
        return isinstance(huggingface_hub.try_to_load_from_cache(repo, file, cache, revision=info.sha), str)

    sizes = sizes_of(info)
    require_room(cache, sum(sizes[file] for file in choice.files if not cached(file)))
    if left := remove_leftovers(repo, cache):
        say({"notice": f"{repo}: {megabytes(left)} of an unfinished download were removed; that file starts again"})
    done, paths = 0, []
    for file in choice.files:
        new = not cached(file)
        # By the revision's name, and also where the file is cached: so that the cache knows which commit that name is.
        path = Path(
            huggingface_hub.hf_hub_download(
                repo, file, revision=revision, cache_dir=cache, tqdm_class=progress_class(done, choice.bytes)
            )
        )
        if info.sha not in path.relative_to(cache).parts:
            raise Refused("was changed while it was being fetched; try again")
        if new and file in sums:
            check(path, sums[file])
        done += sizes[file]
        say({"done": done, "total": choice.bytes})
        paths.append(path)
    return paths[0].parent if choice.is_folder else paths[0]


def the_choice(request: dict[str, Any], sizes: dict[str, int]) -> Choice:
    """What the request means; where that was a choice among several, it is said."""
    adapter = request["kind"] == "adapter"
    choices = list_adapters(sizes) if adapter else list_choices(sizes)
    try:
        choice = (choose_adapter if adapter else choose)(choices, request["file"], request["quantization"])
    except LookupError as error:
        raise Refused(str(error), missing=True) from error
    if not adapter and request["file"] is None and len(choices) > 1:
        what = f"{choice.label}, {len(choice.files)} files" if len(choice.files) > 1 else choice.files[0]
        text = f"{request['repo']}: chose {what} ({megabytes(choice.bytes)}) of {len(choices)} models"
        say({"notice": f"{text}; `chat models info {request['repo']}` lists them"})
    return choice


def check(path: Path, expected: str) -> None:
    """Remove the file of the cache where its SHA-256 is another one, or while that is not known."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != expected:
            raise Refused(f"gave {path.name} with SHA-256 {found}, expected {expected}; it was removed, try again")
    except BaseException:
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise


def progress_class(before: int, total: int) -> type:
    """A progress bar for huggingface_hub that reports to stdout, a line an update, instead of drawing.

    `before` bytes of `total` came with earlier files.
    """
    from tqdm import tqdm

    class Progress(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            # The library's name for the bar, which tqdm does not know.
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": False})

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            say({"done": before + int(self.n), "total": total})
            return True

        # Where these exist, a transfer through Xet reports written and received bytes on one bar, not on two.
        def update_transfer(self, _bytes: float) -> None:
            pass

        def set_transfer_postfix_str(self, *_args: Any, **_options: Any) -> None:
            pass

    return Progress


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    # Being ended must unwind the stack: the library removes its half-written file on the way.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    request = json.loads(sys.argv[1])
    try:
        if request["action"] == "list":
            info = look_up(request)
            say({"files": sizes_of(info), "license": license_of(info)})
        else:
            say({"path": str(fetch(request))})
    except FetchFailed as error:
        say({"error": str(error), "missing": False})
    except Exception as error:
        refused = explain(error, request)
        say({"error": str(refused), "missing": refused.missing})


if __name__ == "__main__":
    main()
