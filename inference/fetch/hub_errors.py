"""Errors of huggingface_hub in words that say what to do."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any


class Refused(Exception):
    """The hub's answer cannot be used, for a reason that reads on after the source's name.

    `missing` tells that there is no such thing, rather than that it could not be had this time.
    """

    def __init__(self, reason: str, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


def explain(error: Exception, request: Mapping[str, Any]) -> Refused:
    """The error of a request (see hub_worker) as one that a person can act on."""
    from huggingface_hub import constants, errors

    if isinstance(error, Refused):
        return error
    # "Not in the cache either": what counts is why the hub did not give it.
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, errors.OfflineModeIsEnabled):
        return Refused(
            "was not asked, because HF_HUB_OFFLINE is set; unset it to download, "
            "or use a model that is on this machine (`chat models` lists them)"
        )
    # A kind of RepositoryNotFoundError, so it comes first.
    if isinstance(error, errors.GatedRepoError):
        page = f"{constants.ENDPOINT}/{request['repo']}"
        return Refused(f"is gated: accept its licence on {page}, then log in with `hf auth login`")
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return Refused("does not exist or is private: check its name, or log in with `hf auth login`", missing=True)
    if isinstance(error, errors.RevisionNotFoundError):
        return Refused(f"has no revision {request['revision']}: check the branch, tag or commit", missing=True)
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return Refused(f"has no file {request['file']}", missing=True)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused(
            f"filled the disk that holds {request['cache']}; no part of a file was kept: free some space and try again"
        )
    if isinstance(error, OSError) and error.filename is not None:
        return Refused(f"could not be written to {error.filename} ({error.strerror}); nothing was kept")
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        return _explain_status(error.response.status_code, error.response.headers.get("Retry-After"))
    detail = " ".join(str(error).split()) or type(error).__name__
    return Refused(
        f"could not be read ({detail}); check the network and try again: whole files are kept, others start again"
    )


def _explain_status(status: int, retry_after: str | None) -> Refused:
    if status in (401, 403):
        return Refused(f"refused your login (HTTP status {status}): log in again with `hf auth login`")
    if status == 429:
        wait = f"{retry_after} seconds" if retry_after else "some minutes"
        return Refused(f"is being asked too often (HTTP status 429): try again in {wait}, or log in: `hf auth login`")
    return Refused(f"answered with HTTP status {status}; try again later")
