"""The reconciliation of a member with its target assignment (KIP-848), one step per heartbeat.

First the member gets the partitions to revoke, and keeps its epoch until it reports the revocation. Then it
moves to the epoch of the target, and gets its free partitions. It gets the others when their owners have
revoked them or are gone. So a partition never has two owners; between two members it has none.

    STABLE      has all of its target
    UNREVOKED   still has to revoke partitions, and keeps its epoch until then
    UNRELEASED  has the epoch of the target; other members still own some of its target

Called by `member_lifecycle.py` for each heartbeat, and for each join of a classic member. Pure: no groups, no
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.model.assignors import NOTHING, Places

#: Kafka's numbers, as in records.
STABLE: Final = 0
UNREVOKED: Final = 1
UNRELEASED: Final = 2
#: The names in docs/groups.md.
STATES: Final = ("Stable", "Unrevoked", "Unreleased")


class CurrentAssignment(NamedTuple):
    """The current assignment of a member. It owns both `assigned` and `pending_revocation`."""

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
    """The current assignment after a heartbeat that reports `owned` (None: unchanged).

    `free(places)` returns those that no other member owns.
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
    # The target itself, not a copy: caches are keyed by the set.
    assigned = target if is_whole else kept | given
    after = CurrentAssignment(target_epoch, current.epoch, STABLE if is_whole else UNRELEASED, assigned)
    # Still waiting: nothing to write.
    is_same = (
        after.epoch == current.epoch and after.state == current.state and after.assigned == current.assigned
    )
    return current if is_same and not current.pending_revocation else after
