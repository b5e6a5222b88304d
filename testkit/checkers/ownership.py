"""Checker of partition ownership in a group, as its members see it.

A member claims partitions from the time at which they are assigned to it until it revokes them, or until its
session ends. A member without contact for the session timeout may be out of the group without knowing it, so
its claims end then. A later response does not restore them.

    two-owners              a partition is assigned to a member during the claim of another, or to two in one generation
    generation-regression   a generation is returned after a higher one
    zombie-commit           a commit takes effect that began after the end of its generation, or for another's partition
    member-lost             a member is told that it is unknown, although it was in contact in time
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from testkit.checkers.partition import Anomaly

Place = tuple[bytes, int]


class Commit(NamedTuple):
    """The state when a commit began."""

    who: str
    member_id: str
    generation: int
    newest: int
    owners: dict[Place, str]


class _Claim:
    __slots__ = ("places", "until_ms")

    def __init__(self) -> None:
        self.places: dict[Place, None] = {}
        self.until_ms = -1


class Ownership:
    """One group. A member is identified by its instance id, if it has one: another process may replace it."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self._claims: dict[str, _Claim] = {}
        #: The newest generation with an assignment (classic groups).
        self.generation = -1
        self._assigned: dict[int, dict[tuple[str, int], str]] = {}
        #: The id of the process that got a partition last.
        self.holders: dict[Place, str] = {}

    # --- classic generations ------------------------------------------------------------------------------------

    def synced(self, who: str, asked: int, generation: int, places: Iterable[tuple[str, int]]) -> None:
        """A member has its assignment in a generation; `asked` is the newest generation when it asked."""
        if generation < asked:
            raise Anomaly(
                "generation-regression",
                f"{self.group_id}: {who} is given an assignment of {generation}, after {asked}",
            )
        self.generation = max(self.generation, generation)
        known = self._assigned.setdefault(generation, {})
        for place in places:
            owner = known.setdefault(place, who)
            if owner != who:
                raise Anomaly(
                    "two-owners", f"{self.group_id}: {place} is {owner}'s and {who}'s in {generation}"
                )

    # --- claims -------------------------------------------------------------------------------------------------

    def take(self, who: str, member_id: str, places: Iterable[Place], now_ms: int, until_ms: int) -> None:
        """These partitions are assigned to a member."""
        claim = self._claims.setdefault(who, _Claim())
        if claim.until_ms <= now_ms:
            claim.places.clear()
        for place in places:
            for other, its in self._claims.items():
                if other != who and place in its.places and its.until_ms > now_ms:
                    raise Anomaly(
                        "two-owners",
                        f"{self.group_id}: {place[0].hex()[:4]}-{place[1]} is given to {who} while {other} has it",
                    )
            claim.places[place] = None
            self.holders[place] = member_id
        claim.until_ms = max(claim.until_ms, until_ms)

    def unsure(self, places: Iterable[Place]) -> None:
        """A member may be wrong about owning these: their owner is unknown."""
        for place in places:
            self.holders.pop(place, None)

    def release(self, who: str, places: Iterable[Place] | None = None) -> None:
        """A member has revoked these, or all."""
        claim = self._claims.get(who)
        if claim is not None:
            for place in list(claim.places if places is None else places):
                claim.places.pop(place, None)

    def heard(self, who: str, now_ms: int, until_ms: int) -> None:
        """A member was in contact: its claims are extended, unless they have ended."""
        claim = self._claims.get(who)
        if claim is not None and claim.until_ms > now_ms:
            claim.until_ms = until_ms

    def is_out(self, who: str, now_ms: int, why: str) -> None:
        """A member is told that it is unknown, although it has not left."""
        claim = self._claims.get(who)
        if claim is not None and claim.places and claim.until_ms > now_ms:
            raise Anomaly(
                "member-lost",
                f"{self.group_id}: {who} hears {why}, {claim.until_ms - now_ms} ms before its time is over",
            )

    # --- commits ------------------------------------------------------------------------------------------------

    def commit(self, who: str, member_id: str, generation: int, places: Iterable[Place]) -> Commit:
        owners = {place: self.holders[place] for place in places if place in self.holders}
        return Commit(who, member_id, generation, self.generation, owners)

    def counts(self, commit: Commit) -> None:
        """It was acknowledged."""
        if commit.generation < commit.newest:
            raise Anomaly(
                "zombie-commit",
                f"{self.group_id}: {commit.who} commits in {commit.generation}, after {commit.newest} had begun",
            )
        for place, owner in commit.owners.items():
            if owner != commit.member_id:
                raise Anomaly(
                    "zombie-commit",
                    f"{self.group_id}: {commit.who} commits {place[0].hex()[:4]}-{place[1]}, which {owner} has",
                )
