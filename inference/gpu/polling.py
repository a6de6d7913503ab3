"""Hearing what the GPU has finished, without holding up those who submit."""

from __future__ import annotations

import time
from typing import Any

PAUSE_S = 50e-6
"""Between two questions, for each result that is awaited. Asking takes the interpreter from the thread that encodes,
which takes 1.37 times as long with one question every 50 us and no longer with one every 300; and the more steps are
under way, the later the device runs out of them."""


def ask_instead_of_waiting(device: Any) -> None:
    """Make the thread in which wgpu-py polls `device` ask again and again instead of waiting for the device.

    While a thread waits in wgpuDevicePoll, wgpu holds the lock of the device's fence, and every submit needs that
    lock: a step could be submitted only when all before it were done, and the GPU would idle between them. With
    another backend or version of wgpu-py, whose thread is made in another way, nothing changes.
    """
    try:
        from wgpu.backends.wgpu_native import _api

        handle, poll, null = device._internal, _api.libf.wgpuDevicePoll, _api.ffi.NULL
        poller = device._poller
        poller._poll_func  # noqa: B018 (raises AttributeError where it is called otherwise)
        awaited = poller._token_ids
    except (ImportError, AttributeError):
        return

    def ask(block: bool) -> None:
        # Nothing of the device itself is kept here, so that it can be freed.
        poll(handle, False, null)
        if block:
            time.sleep(PAUSE_S * max(1, len(awaited)))

    poller._poll_func = ask
