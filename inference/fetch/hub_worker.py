"""The child process that downloads one file from the Hugging Face hub into its shared cache.

Run as a script, so that it imports nothing of Glasschat. Its one argument is a JSON object with `repo`, `file` (or
null: choose), `revision`, `cache` (folder) and `sha256` (or null). It writes one JSON object a line: `{"done",
"total"}` in bytes while it works, then `{"path"}` or `{"error", "missing"}`; an error reads on after the source's
name.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

# Best first: the usual compromise of size and quality, then what is near it, then the large ones.
PREFERRED = ("Q4_K_M", "Q4_1", "Q4_0", "Q4_K_S", "Q5_K_M", "Q5_0", "Q6_K", "Q8_0", "F16", "BF16", "F32")
# An answer within this time, or the next source is tried.
ANSWER_S = 10
# The library's own 10 MB would move the progress bar once in ten seconds on a slow line.
PROGRESS_BYTES = 256 * 1024


def choose_gguf(files: list[str]) -> str | None:
    """The file to take from a repository: one GGUF in one piece, the best of PREFERRED, else the first by name.

    Vision projectors (mmproj) and parts of split files are no models of their own.
    """
    whole = [
        file
        for file in sorted(files)
        if file.lower().endswith(".gguf")
        and not re.search(r"-\d{5}-of-\d{5}\.gguf$", file)
        and not Path(file).name.startswith("mmproj")
    ]
    for quantization in PREFERRED:
        for file in whole:
            if re.search(rf"(?<![A-Za-z0-9]){quantization}\.gguf$", file, re.IGNORECASE):
                return file
    return whole[0] if whole else None


def download(request: dict[str, Any]) -> Path:
    """Download the file (once: a cached one is returned as it is), check its SHA-256, return its path."""
    import huggingface_hub
    from huggingface_hub import constants

    constants.DOWNLOAD_CHUNK_SIZE = PROGRESS_BYTES
    repo, revision, cache = request["repo"], request["revision"], request["cache"]
    file = request["file"]
    if file is None:
        files = huggingface_hub.HfApi().list_repo_files(repo, revision=revision)
        file = choose_gguf(files)
        if file is None:
            raise Refused("has no GGUF file in one piece, and only those can be run", missing=True)
    # The library would retry an unreachable hub for half a minute; the next source should not wait for that.
    metadata = huggingface_hub.get_hf_file_metadata(
        huggingface_hub.hf_hub_url(repo, file, revision=revision), timeout=ANSWER_S, retry_on_errors=False
    )
    cached = huggingface_hub.try_to_load_from_cache(repo, file, cache_dir=cache, revision=metadata.commit_hash)
    if isinstance(cached, str):
        return Path(cached)
    path = Path(
        huggingface_hub.hf_hub_download(repo, file, revision=revision, cache_dir=cache, tqdm_class=progress_class())
    )
    # The hub names large files by their SHA-256; others have a Git hash as ETag.
    is_sha256 = metadata.etag is not None and re.fullmatch("[0-9a-f]{64}", metadata.etag)
    expected = request["sha256"] or (metadata.etag if is_sha256 else None)
    try:
        found = sha256(path) if expected else None
        if found != expected:
            raise Refused(f"gave a file with SHA-256 {found}, expected {expected}; it was removed, try again")
    except BaseException:
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        raise
    return path


class Refused(Exception):
    """The download cannot be done, for a reason that reads on after the source's name."""

    def __init__(self, reason: str, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


def progress_class() -> type:
    """A progress bar for huggingface_hub that reports to stdout, a line an update, instead of drawing."""
    from tqdm import tqdm

    class Progress(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            # The library's name for the bar, which tqdm does not know.
            options.pop("name", None)
            super().__init__(*args, **{**options, "disable": False})

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            say({"done": int(self.n), "total": int(self.total or 0)})
            return True

        # Where these exist, a transfer through Xet reports written and received bytes on one bar, not on two.
        def update_transfer(self, _bytes: float) -> None:
            pass

        def set_transfer_postfix_str(self, *_args: Any, **_options: Any) -> None:
            pass

    return Progress


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def explain(error: Exception, request: dict[str, Any]) -> Refused:
    """Put an error of huggingface_hub into words that read on after the source's name."""
    from huggingface_hub import errors

    if isinstance(error, Refused):
        return error
    if isinstance(error, errors.OfflineModeIsEnabled):
        return Refused("was not asked, because HF_HUB_OFFLINE is set; unset it to download")
    if isinstance(error, errors.GatedRepoError):
        return Refused("asks you to accept its terms: do so on its page, then log in with `hf auth login`")
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return Refused("does not exist or is private: check its name, or log in with `hf auth login`", missing=True)
    if isinstance(error, errors.RevisionNotFoundError):
        return Refused(f"has no revision {request['revision']}", missing=True)
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return Refused(f"has no file {request['file']}", missing=True)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused(
            f"filled the disk that holds {request['cache']}; nothing was kept: free some space and try again"
        )
    if isinstance(error, OSError) and error.filename is not None:
        return Refused(f"could not be written to {error.filename} ({error.strerror}); nothing was kept")
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        return Refused(f"answered with HTTP status {error.response.status_code}; try again later")
    detail = " ".join(str(error).split()) or type(error).__name__
    return Refused(f"could not be read ({detail}); check the network and try again")


def say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    # Being ended must unwind the stack: the library removes its half-written file on the way.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    request = json.loads(sys.argv[1])
    try:
        say({"path": str(download(request))})
    except Exception as error:
        refused = explain(error, request)
        say({"error": str(refused), "missing": refused.missing})


if __name__ == "__main__":
    main()
