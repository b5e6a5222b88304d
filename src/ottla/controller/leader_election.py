"""Leader election: the leader, the ISR and the eligible replicas of a partition are decided here only.

Every change of a partition's members goes through `settle`: a broker that registers, fails, lost its page
cache or stops; an ISR that the leader alters; a reassignment; an election on request. It is a pure function
of the record before. Its rules:

- The leader stays while it is in the ISR and live. Otherwise the first of these is elected: the first of
  `replicas` that is in the ISR and live; the first live eligible replica, with an ISR of its own; with
  unclean elections allowed, any live replica. If there is none, the leader is -1 and `last_leader` keeps the
  previous one (E6).
- Members that leave while the ISR is smaller than `min.insync.replicas` become eligible (KIP-966). The high
  watermark does not move below that size (R3), so they have all committed records. Once the ISR is large
  enough again, no other replica is eligible. Eligible replicas beside an ISR of sufficient size, after the
  setting was lowered, are void.
- Replicas that lost unflushed records (`lost`, R7) leave both. If that leaves none, no replica has more than
  the last leader: it is elected all the same, or another one if it is not live.
- `partition_epoch` grows with each change. `leader_epoch` grows when the leader changes, and when the ISR
  loses a member, so that nothing more is acknowledged for the old ISR. A leader that alters its ISR itself
  keeps its epoch.
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
    """The topic settings that elections depend on."""

    min_isr: int
    #: Whether a replica that lacks records may lead when no other can.
    unclean: bool
    #: Whether replicas flush records before they report them: then no crash loses reported records.
    durable: bool
    #: Whether that is a setting of the topic, and not of each broker, which may differ.
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
    """The smallest ISR in which the high watermark moves: at most the number of replicas."""
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
    """The partition with this ISR; `old` itself if nothing changes.

    `replicas`, `adding` and `removing` replace those of `old`. `by_leader`: the leader requests it. `anew`:
    the leader has a new incarnation or is to be fenced: the leader epoch grows even if it stays leader.
    `prefer`: the first of `replicas` leads if it can.
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
            # Others had as many records or more; the committed records are those of this replica now.
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
    """Elect a leader from the ISR. If all members are about to stop, one of them leads until it stops."""
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
    """Elect a leader although the ISR is empty. `whole`: replicas that still have all committed records."""
    for node in whole:
        if live(node):
            return node
    if had.issubset(lost):
        # No replica has more records than the last leader, or than the only replicas there are.
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
    """Steps that become one record raise each epoch once."""
    if new is old:
        return old
    return new._replace(
        leader_epoch=min(new.leader_epoch, old.leader_epoch + 1), partition_epoch=old.partition_epoch + 1
    )
