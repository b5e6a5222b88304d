"""A leader changes its ISR by asking (AlterPartition; KIP-497, 841, 903): whether it may, and what becomes of the partition.

The request names the state that it was decided on; anything else has overtaken it. Who joins must live, not be about to stop, and
be in the life that the leader fetches from (R5). The leader's epoch stays, unless this completes a reassignment that takes
members away, or lets go a leader that is about to stop.

A leader that leaves itself out gives up the partition: its log directory has failed. Another one in sync leads then, and the old one
counts as having lost its records. (Kafka refuses such a request; its brokers tell of directories instead, KIP-858.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.controller import records as r
from ottla.controller.electing import Rules, as_one, settle
from ottla.controller.image import Image
from ottla.controller.reassigning import complete
from ottla.model.errors import ErrorCode, Refusal

ANY_EPOCH = -1


class Wish(NamedTuple):
    """What a leader asks for."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    #: The new ISR: by broker the epoch of its life, or ANY_EPOCH.
    isr: Mapping[int, int]


def alter_isr(image: Image, rules: Rules, old: r.Partition, wish: Wish) -> r.Partition:
    """The partition as wished, `old` itself if that is what it is; or a Refusal with the protocol's code."""
    _check(image, old, wish)
    given_up = () if wish.leader in wish.isr else (wish.leader,)
    altered = settle(old, rules, image.is_live, isr=wish.isr, lost=given_up, by_leader=True)
    return as_one(old, complete(altered, rules, image.is_live))


def _check(image: Image, old: r.Partition, wish: Wish) -> None:
    if wish.leader_epoch > old.leader_epoch or wish.partition_epoch > old.partition_epoch:
        # It has seen what is not known here: somebody else controls.
        raise Refusal(ErrorCode.NOT_CONTROLLER, "the request is ahead of this controller")
    if wish.leader_epoch < old.leader_epoch:
        raise Refusal(ErrorCode.FENCED_LEADER_EPOCH, f"the leader epoch is {old.leader_epoch}")
    if wish.leader != old.leader:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"broker {wish.leader} does not lead this partition")
    if wish.partition_epoch < old.partition_epoch:
        raise Refusal(ErrorCode.INVALID_UPDATE_VERSION, f"the partition epoch is {old.partition_epoch}")
    if not set(wish.isr) <= set(old.replicas):
        raise Refusal(ErrorCode.INVALID_REQUEST, "the ISR must hold replicas only")
    if wish.leader not in wish.isr and not any(node in old.isr and image.is_live(node) for node in wish.isr):
        raise Refusal(ErrorCode.INVALID_REQUEST, "nobody else is in sync: the ISR must hold the leader")
    for node, epoch in wish.isr.items():
        broker = image.brokers.get(node)
        if broker is None or (epoch not in (ANY_EPOCH, broker.epoch)):
            raise Refusal(ErrorCode.INELIGIBLE_REPLICA, f"broker {node} has another epoch")
        if node not in old.isr and not image.is_live(node):
            raise Refusal(ErrorCode.INELIGIBLE_REPLICA, f"broker {node} is fenced or about to stop")
