"""Who leads a partition, who is in sync with it, and who else has all of it that counts: the one place that decides it.

Every change of a partition's members goes through `settle`: a broker that came, went, lost its page cache or stops, an ISR
that its leader alters, replicas that are reassigned, an election by hand. It is a pure function of the record before. Its rules:

- The leader stays while it is in the ISR and may lead. Else the first of `replicas` that is in the ISR and live; else the first
  that is live and eligible, and the ISR is that one alone; else, if the topic allows unclean elections, any live replica; else
  nobody (-1), and `last_leader` remembers who it was (E6).
- Members that leave while the ISR is smaller than `min.insync.replicas` become eligible (KIP-966). The high watermark does not
  move below that size (R3), so they have all that counts for as long as it stays so; once the ISR is large enough
  again, nobody else is eligible. What is in `eligible` beside an ISR of sufficient size, because the setting was lowered, is void.
- Replicas that lost what was not flushed (`lost`, R7) leave both. If that leaves none at all, nobody has more than the one who
  led last, and it is elected all the same, or another of them if that one does not live.
- `partition_epoch` grows with each change; `leader_epoch` when the leader changes, and when the ISR loses a member, so that
  nothing is acknowledged on the old ISR's behalf any more. A leader that alters its ISR itself keeps its epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.metadata import records as r
from ottla.metadata.image import Image

NO_LEADER = -1

#: Whether a broker may lead and be in sync.
Live: TypeAlias = Callable[[int], bool]


class Rules(NamedTuple):
    """What a topic's settings say about its leaders."""

    min_isr: int
    #: Whether somebody who lacks records may lead when nobody else can.
    unclean: bool
    #: Whether everything that a replica reported was flushed before: then no crash takes it back.
    durable: bool
    #: Whether the topic itself says so, and not the file of each broker, which may say something else.
    durable_everywhere: bool = True


def rules_of(image: Image, config: BrokerConfig, topic: str) -> Rules:
    own = image.topic_config(topic)
    resolved = TopicConfig.resolve(own, config)
    return Rules(
        resolved.min_insync_replicas,
        resolved.unclean_leader_election_enable,
        resolved.durable,
        own.get("flush.policy") == "durable" or own.get("flush.messages") == "1",
    )


def min_isr_of(rules: Rules, replicas: Sequence[int]) -> int:
    """How many must be in sync for the high watermark to move: no more than there are replicas."""
    return min(rules.min_isr, len(replicas))


def settle(
    old: r.Partition,
    rules: Rules,
    live: Live,
    *,
    isr: Iterable[int],
    replicas: tuple[int, ...] | None = None,
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
    lost: Collection[int] = (),
    by_leader: bool = False,
    anew: bool = False,
    prefer: bool = False,
) -> r.Partition:
    """The partition once `isr` are in sync; `old` itself if nothing changes.

    `replicas` with what is adding and removing replaces those of `old`. `by_leader`: the leader asks for it. `anew`: the leader's
    life is another one, or it is to be cut off: its epoch grows even if it stays. `prefer`: the first of `replicas` leads if it may.
    """
    if replicas is None:
        replicas, adding, removing = old.replicas, old.adding, old.removing
    members = _in_order(replicas, {*isr}.difference(lost))
    had = set(old.isr)
    if len(old.isr) < min_isr_of(rules, old.replicas):
        had.update(old.eligible)
    whole = _in_order(replicas, had.difference(lost, members))

    leader = _elect(old.leader, members, live, replicas[0] if prefer else NO_LEADER)
    if leader == NO_LEADER:
        leader = _elect_outside(old, rules, live, replicas, whole, had, lost)
        members = () if leader == NO_LEADER else (leader,)
        if leader != NO_LEADER and leader not in whole:
            # Others had more, or the same; what counts from now on is what this one has.
            whole = ()
    eligible: tuple[int, ...] = ()
    if len(members) < min_isr_of(rules, replicas):
        eligible = tuple(node for node in whole if node not in members)

    last_leader = NO_LEADER
    if leader == NO_LEADER:
        last_leader = old.last_leader if old.leader == NO_LEADER else old.leader
    is_smaller = not by_leader and not set(old.isr) <= set(members)
    fresh = old._replace(
        replicas=replicas, isr=members, leader=leader, adding=adding, removing=removing,
        eligible=eligible, last_leader=last_leader,
    )  # fmt: skip
    is_new_term = leader != old.leader or is_smaller or (anew and leader != NO_LEADER)
    if fresh == old and not is_new_term:
        return old
    return fresh._replace(
        leader_epoch=old.leader_epoch + is_new_term, partition_epoch=old.partition_epoch + 1
    )


def _in_order(replicas: Sequence[int], chosen: Collection[int]) -> tuple[int, ...]:
    return tuple(node for node in replicas if node in chosen)


def _elect(leader: int, members: Sequence[int], live: Live, preferred: int) -> int:
    """From the ISR. If all of it are about to stop, one of them leads until it does."""
    if preferred in members and live(preferred):
        return preferred
    if leader in members and live(leader):
        return leader
    for node in members:
        if live(node):
            return node
    if leader in members:
        return leader
    return members[0] if members else NO_LEADER


def _elect_outside(
    old: r.Partition,
    rules: Rules,
    live: Live,
    replicas: tuple[int, ...],
    whole: tuple[int, ...],
    had: set[int],
    lost: Collection[int],
) -> int:
    """The ISR is empty: who leads all the same. Of those who had everything, `whole` are those who still have it."""
    for node in whole:
        if live(node):
            return node
    if had.issubset(lost):
        # Nobody has more than these: whoever led last, or the only ones there are.
        last = old.last_leader if old.leader == NO_LEADER else old.leader
        most = had or ({last} if len(replicas) > 1 else replicas)
        for node in (last, *replicas):
            if node in most and node in replicas and live(node):
                return node
    if rules.unclean:
        for node in replicas:
            if live(node):
                return node
    return NO_LEADER


def as_one(old: r.Partition, new: r.Partition) -> r.Partition:
    """Steps that become one record are one change."""
    if new is old:
        return old
    return new._replace(
        leader_epoch=min(new.leader_epoch, old.leader_epoch + 1), partition_epoch=old.partition_epoch + 1
    )
