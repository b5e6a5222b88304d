"""The controller's decision about AlterPartition (KIP-497, 841, 903): whether the ISR changes, and the new
partition.

The request names the state that it was decided on, and is refused if that state has changed. A joining broker
must be live, not about to stop, and in the broker epoch that the leader has seen (R5). The leader epoch
stays, unless the change completes a reassignment that removes members, or replaces a leader that is about to
stop.

A member that removes only itself has lost records: its log directory failed, or its log is damaged (R12). It
need not be the leader. Another member that has all committed records becomes leader; without one the request
is refused. (Kafka always refuses it; its brokers report failed directories instead, KIP-858.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.controller.leader_election import NO_LEADER, Rules, as_one, settle
from ottla.controller.reassignment import complete
from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.model.errors import ErrorCode, Refusal

ANY_EPOCH = -1


class Wish(NamedTuple):
    """A requested ISR."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    #: The new ISR: broker epochs by node id. ANY_EPOCH is enough for a member of the current ISR.
    isr: Mapping[int, int]


def alter_isr(image: Image, rules: Rules, old: r.Partition, wish: Wish) -> r.Partition:
    """The partition with this ISR; `old` itself if nothing changes. Raises `Refusal` with the protocol's
    code."""
    _check_epochs(old, wish)
    if wish.leader not in wish.isr:
        return _left(image, rules, old, wish)
    _check(image, old, wish)
    altered = settle(old, rules, image.is_live, isr=wish.isr, by_leader=True)
    return as_one(old, complete(altered, rules, image.is_live))


def _left(image: Image, rules: Rules, old: r.Partition, wish: Wish) -> r.Partition:
    """The partition without the member that sent the request."""
    if set(wish.isr) != set(old.isr) - {wish.leader}:
        raise Refusal(ErrorCode.INVALID_REQUEST, "a member that leaves the ISR may change nothing else of it")

    def live(node: int) -> bool:
        return node != wish.leader and image.is_live(node)

    altered = settle(old, rules, live, isr=wish.isr, lost=(wish.leader,), by_leader=True)
    if altered.leader == NO_LEADER:
        raise Refusal(ErrorCode.INVALID_REQUEST, "no other replica has all committed records")
    return as_one(old, complete(altered, rules, live))


def _check_epochs(old: r.Partition, wish: Wish) -> None:
    if wish.leader_epoch > old.leader_epoch or wish.partition_epoch > old.partition_epoch:
        # The sender has newer metadata: another broker is the controller.
        raise Refusal(ErrorCode.NOT_CONTROLLER, "the request is ahead of this controller")
    if wish.leader_epoch < old.leader_epoch:
        raise Refusal(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {old.leader_epoch}")
    if wish.partition_epoch < old.partition_epoch:
        raise Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"the partition epoch is {old.partition_epoch}")


def _check(image: Image, old: r.Partition, wish: Wish) -> None:
    if wish.leader != old.leader:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"broker {wish.leader} does not lead this partition")
    if not set(wish.isr) <= set(old.replicas):
        raise Refusal(ErrorCode.INVALID_REQUEST, "the ISR may contain only replicas of the partition")
    for node, epoch in wish.isr.items():
        broker = image.brokers.get(node)
        if broker is None or not (epoch == broker.epoch or (epoch == ANY_EPOCH and node in old.isr)):
            raise Refusal(ErrorCode.INELIGIBLE_REPLICA, f"broker {node} has another epoch")
        if node not in old.isr and not image.is_live(node):
            raise Refusal(ErrorCode.INELIGIBLE_REPLICA, f"broker {node} is fenced or about to stop")
