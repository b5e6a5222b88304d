"""Rounds of syncs: no client waits for thousands of files of another client."""

import asyncio
from typing import Any

from ottla.runtime.background import Syncer

MANY = 1_000


class Disk:
    def sync(self, file: "File") -> None: ...

    def sync_dir(self, path: str) -> None: ...


class File:
    def __init__(self, number: int) -> None:
        self.path = f"f{number}"


def synced_in_order(ask: Any, expected: int) -> list[list[Any]]:
    """The targets of each round for the syncs that `ask(syncer)` requests."""
    rounds: list[list[Any]] = []
    loop = asyncio.new_event_loop()

    def done(targets: list[Any], failures: list[Any], refused: list[Any]) -> None:
        rounds.append(targets)
        if sum(map(len, rounds)) >= expected:
            loop.stop()

    disk: Any = Disk()
    syncer = Syncer(loop, disk, 2, done)
    loop.call_soon(ask, syncer)
    loop.call_later(30, loop.stop)
    loop.run_forever()
    syncer.stop()
    loop.close()
    return rounds


def test_a_sync_of_one_file_overtakes_those_of_very_many() -> None:
    def ask(syncer: Syncer) -> None:
        for number in range(MANY):
            syncer.ask(File(number), f"d{number}", number, True)
        syncer.ask(File(MANY), None, "mine")

    rounds = synced_in_order(ask, MANY + 1)
    assert "mine" in rounds[0]
    assert max(map(len, rounds)) < 50
    assert sorted(each for targets in rounds for each in targets if each != "mine") == list(range(MANY))


def test_a_bulk_file_that_another_request_needs_comes_first() -> None:
    def ask(syncer: Syncer) -> None:
        files = [File(number) for number in range(MANY)]
        for number, file in enumerate(files):
            syncer.ask(file, f"d{number}", (number, "bulk"), True)
        syncer.ask(files[-1], None, (MANY - 1, "mine"))

    rounds = synced_in_order(ask, MANY)
    assert (MANY - 1, "mine") in rounds[0]
    assert sum(map(len, rounds)) == MANY
