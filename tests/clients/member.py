"""A member of a group as a process of its own, to be killed or paused: `python member.py KIND ADDRESS GROUP TOPIC`.

It prints how many partitions it has whenever that changes, and ends when nobody holds its standard input any more.
"""

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.clients.subscribers import ALL_SUBSCRIBERS

SESSION_MS = 1000


def main(name: str, address: str, group: str, topic: str) -> None:
    [kind] = [kind for kind in ALL_SUBSCRIBERS if kind.name == name]
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    member = kind(address, group, topic, session_ms=SESSION_MS)
    told = -1
    while not over.wait(0.02):
        if len(member.parts) != told:
            told = len(member.parts)
            print(told, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
