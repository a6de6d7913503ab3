"""Programs that are killed while they write, and several that write at once."""

from __future__ import annotations

import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from app.store import schema
from app.store.store import Store
from tests.app.store.test_store import ask, texts

ROOT = Path(__file__).parent.parent.parent.parent
PERIOD_S = 0.02
KILLS = 20

TALK_UNTIL_KILLED = f"""
import asyncio, itertools, sys, time
from pathlib import Path
from app.store import store as module

module.GROWTH_PERIOD_S = {PERIOD_S}
store = module.Store(Path(sys.argv[1]))

async def main():
    tree = await store.open(int(sys.argv[2]))
    for length in itertools.cycle((10, 1000)):
        question = tree.add("user", "a question", tree.active)
        reply = tree.add("assistant", "", question.id)
        for number in range(length):
            tree.grow(reply.id, f"{{number}} ")
            print(time.monotonic(), reply.id, number, flush=True)
            time.sleep(0.002)
        tree.finish(reply.id, "stop")

asyncio.run(main())
"""

ADD_A_HUNDRED = """
import asyncio, sys
from pathlib import Path
from app.store.store import Store

store = Store(Path(sys.argv[1]))

async def main():
    tree = await store.open(int(sys.argv[2]))
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(100):
        reply = tree.add("assistant", "", int(sys.argv[3]))
        tree.grow(reply.id, f"{sys.argv[4]} {number}")
        await store.conversations()
        tree.finish(reply.id, "stop")

asyncio.run(main())
sys.exit(store.close() or "".join(store.drain()) or 0)
"""


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_a_kill_loses_no_more_than_the_last_moment(path: Path) -> None:
    store = Store(path)
    tree = store.new()
    tree.add("user", "the first question", None)
    assert store.close() == ""
    seen: dict[int, str] = {}
    lost_s = []
    chance = random.Random(6)
    for _ in range(KILLS):
        child = start(TALK_UNTIL_KILLED, path, tree.id)
        assert child.stdout is not None
        first_line = child.stdout.readline()
        time.sleep(chance.uniform(0.03, 0.23))
        killed = time.monotonic()
        child.send_signal(signal.SIGKILL)
        out, err = child.communicate()
        assert err == "", err
        # The last line may be cut.
        lines = [line.split() for line in (first_line + out).rpartition("\n")[0].splitlines()]

        connection = schema.connect(path)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()
        store = Store(path)
        again = await store.open(tree.id)
        found = {message.id: message for message in await store.messages(again, [node.id for node in again.path()])}
        store.close()
        # What was there stays; a reply is the beginning of what was written, and whole where it is finished.
        assert seen.items() <= {id: message.text for id, message in found.items()}.items()
        written = "".join(f"{number} " for number in range(1000))
        for id, message in found.items():
            if id not in seen and message.role == "assistant":
                assert written.startswith(message.text) and message.text[-1:] in (" ", "")
                assert message.finish_reason is None or message.text.endswith(" 9 ")
        missing = [
            float(when)
            for when, id, number in lines
            if int(id) not in found or f"{number} " not in f" {found[int(id)].text}"
        ]
        lost_s.append(killed - missing[0] if missing else 0.0)
        seen = {id: message.text for id, message in found.items()}
    assert max(lost_s) <= 1
    assert statistics.median(lost_s) <= 3 * PERIOD_S
    assert len(seen) > 2 * KILLS


async def test_two_programs_write_at_once(path: Path) -> None:
    store = Store(path)
    tree = store.new()
    first = tree.add("user", "everyone?", None).id
    assert len(await store.conversations()) == 1
    children = [start(ADD_A_HUNDRED, path, tree.id, first, name) for name in ("left", "right")]
    assert [child.stdout and child.stdout.readline() for child in children] == ["ready\n", "ready\n"]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    ask(tree, "mine", "too")
    for child in children:
        assert child.communicate() == ("", ""), child.returncode
        assert child.returncode == 0
    again = await store.open(tree.id)
    below = again.siblings(tree.path()[1].id)
    written = [message.text for message in await store.messages(again, below)]
    expected = [f"{name} {number}" for name in ("left", "right") for number in range(100)]
    assert sorted(written) == sorted([*expected, "mine"])
    again.show(tree.path()[-1].id)
    assert await texts(store, again) == ["everyone?", "mine", "too"]
    store.close()
