"""A desk: the sequence of producers of one transactional id.

A producer is killed, or paused for so long that another one takes the desk and fences it. Then the paused one
resumes, without knowing. Most of that happens during a transaction.

After the repair the desks that must work get a producer; others only sometimes. At some desks the last
producer is killed in its last transaction, which must end by its timeout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from testkit.sim.script import play
from testkit.sim.transaction_client import Ghost
from testkit.sim.transaction_worker import Worker
from testkit.sim.world import World


class Desk:
    #: How often the last producer of a desk is killed in its last transaction.
    killed_at_last: ClassVar = 0.35

    def __init__(
        self, world: World, make: Callable[[int], Worker], haunt: Callable[[Ghost], None], *, must_work: bool
    ) -> None:
        self._world = world
        self._make = make
        self._haunt = haunt
        #: Whether the desk needs a producer in the end.
        self._must_work = must_work
        self._life = 0
        self.worker: Worker | None = None
        #: Paused producers.
        self.zombies: list[Worker] = []
        self._is_healed = False

    def begin(self) -> None:
        if self.worker is not None:
            return
        self._life += 1
        worker = self.worker = self._make(self._life)
        worker.gone = lambda: self._gone(worker)
        worker.haunt = self._haunt
        worker.log(f"--- comes, version {worker.version}")
        play(worker.work())
        if not self._is_healed:
            self._world.later(2000 + self._world.below(12_000), lambda: self._doom(worker))

    def _doom(self, worker: Worker) -> None:
        """Its end comes, mostly during a transaction."""
        if self.worker is not worker or self._is_healed:
            return
        if self._world.chance(0.8):
            worker.strike(lambda: self._end(worker))
        self._world.later(5000, lambda: self._end(worker))

    def _gone(self, worker: Worker) -> None:
        worker.log("--- gives up")
        if self.worker is worker:
            self.worker = None
            if self._must_work or not self._is_healed:
                self._world.later(100 + self._world.below(2000), self.begin)

    def _end(self, worker: Worker) -> None:
        if self.worker is not worker or self._is_healed:
            return
        world = self._world
        self.worker = None
        away_ms = world.below(1500) if world.chance(0.7) else world.below(12_000)
        if world.chance(0.5):
            worker.log("--- is killed")
            ghost = worker.last_words()
            if ghost is not None:
                world.later(world.below(9000), lambda: self._haunt(ghost))
            worker.die()
        else:
            worker.log("--- is held up")
            worker.place.state = "paused"
            worker.is_retired = True
            self.zombies.append(worker)
            world.later(200 + world.below(7000), lambda: self._resume(worker))
        world.later(away_ms, self.begin)

    def _resume(self, worker: Worker) -> None:
        if worker.place.state != "paused":
            return
        worker.log("--- goes on")
        worker.place.state = "running"
        inbox, worker.place.inbox = worker.place.inbox, []
        for action in inbox:
            action()

    def heal(self) -> None:
        self._is_healed = True
        for zombie in self.zombies:
            self._resume(zombie)
        worker = self.worker
        if worker is not None and not self._must_work and self._world.chance(self.killed_at_last):
            # One more transaction, which must time out.
            worker.wants_one_more = True
            worker.strike(lambda: self._leave(worker))
        elif self._must_work or self._world.chance(0.4):
            self.begin()

    def _leave(self, worker: Worker) -> None:
        worker.log("--- is killed, and nobody comes back")
        worker.die()

    def unrest(self) -> str | None:
        if self.worker is not None and self._must_work and self.worker.is_fenced:
            # By a zombie that resumed late.
            self.worker.die()
            self.worker = None
            self.begin()
        if self._must_work and self.worker is None:
            return "nobody is at a desk"
        for each in (*self.zombies, self.worker if not self._must_work else None):
            if each is not None and not each.is_done and not each.place.life:
                return f"{each.label} is not done"
        return None
