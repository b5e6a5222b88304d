"""One member's way from what it has to what it shall have (KIP-848), a step a heartbeat.

First it is told what to give up, and keeps its epoch until it says that it has. Then it comes to the target's epoch, and is
given what nobody else has any more; what others still hold is given to it when they have let go, or are gone. So a partition has never
two owners: between two members it has none.

    STABLE      has all of its target            UNREVOKED   still has to give up something, and keeps its epoch until then
    UNRELEASED  has the target's epoch; something of its target is still held by others

Called by `membership.py` for each heartbeat, and each join of a classic member; nothing here knows of groups or time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.model.assignors import NOTHING, Places

#: By Kafka's numbers, as they are written down.
STABLE: Final = 0
UNREVOKED: Final = 1
UNRELEASED: Final = 2
#: As the manual calls them.
STATES: Final = ("Stable", "Unrevoked", "Unreleased")


class CurrentAssignment(NamedTuple):
    """What a member has: `assigned` it may read, `revoking` it has been told to give up; both are its own."""

    epoch: int = 0
    previous_epoch: int = 0
    state: int = STABLE
    assigned: Places = NOTHING
    pending_revocation: Places = NOTHING

    @property
    def owned_partitions(self) -> Places:
        return self.assigned | self.pending_revocation if self.pending_revocation else self.assigned


def reconcile(
    current: CurrentAssignment,
    target_epoch: int,
    target: Places,
    owned: Places | None,
    free: Callable[[Places], Places],
) -> CurrentAssignment:
    """What the member has after a heartbeat in which it says that it owns `owned` (None: the same as before).

    `free(places)` are those of them that no other member has.
    """
    if current.state == STABLE and current.epoch == target_epoch:
        return current
    if current.state == UNREVOKED and (owned is None or owned & current.pending_revocation):
        return current
    kept = current.assigned & target
    given_up = current.assigned - target
    if given_up and (owned is None or owned & given_up):
        return CurrentAssignment(current.epoch, current.epoch, UNREVOKED, kept, given_up)
    missing = target - kept
    given = free(missing)
    is_whole = len(given) == len(missing)
    # The target itself, rather than its copy: what is kept of one set need not be found out again.
    assigned = target if is_whole else kept | given
    after = CurrentAssignment(target_epoch, current.epoch, STABLE if is_whole else UNRELEASED, assigned)
    # A member that waits in vain has not changed: nothing is to be written.
    is_same = (
        after.epoch == current.epoch and after.state == current.state and after.assigned == current.assigned
    )
    return current if is_same and not current.pending_revocation else after
