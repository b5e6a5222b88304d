"""Partition changes when brokers register, fail, stop or are unregistered.

`reconcile` makes the image agree with the live registrations; everything else here is a case of it. A
broker's record follows the changes of its partitions. If the controller dies in between, the next one repeats
the work. A broker acts only under a record of its current epoch, so its partitions are settled first.

A registration with a higher epoch than the image is a new incarnation (R5): the earlier one has ended,
detected or not. Its partitions continue in a new leader epoch. The broker leaves the ISR and the eligible
replicas before it may lead again (R7), unless its earlier incarnation ended cleanly, or the topic flushes
records before they are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from ottla.config.broker import BrokerConfig
from ottla.controller.leader_election import NO_LEADER, Rules, min_isr_of, rules_of, settle
from ottla.metadata import records as r
from ottla.metadata.image import Image
from ottla.model.errors import ErrorCode, Refusal
from ottla.ports.store import Registration

NOBODY: frozenset[int] = frozenset()


def reconcile(
    image: Image, config: BrokerConfig, live: Mapping[int, Registration], suspects: Collection[int] = NOBODY
) -> list[r.Record]:
    """The records that make the image agree with the live registrations, and elect leaders where possible.

    The port of a suspect refuses connections: it is fenced although it is registered, until it registers
    again.
    """
    gone, came = [], []
    for node, broker in image.brokers.items():
        registration = live.get(node)
        if registration is not None and registration.epoch != broker.epoch:
            # A registration older than the image was replaced; the new one has not arrived yet.
            if registration.epoch > broker.epoch:
                came.append(registration)
        elif not broker.fenced and (registration is None or node in suspects):
            gone.append(broker)
    came += [registration for node, registration in live.items() if node not in image.brokers]
    return _change(image, config, gone, came)


def broker_gone(image: Image, config: BrokerConfig, node_id: int) -> list[r.Record]:
    """Fence a broker, whether or not its registration still exists."""
    broker = image.brokers.get(node_id)
    return [] if broker is None or broker.fenced else _change(image, config, [broker], [])


def broker_stopping(image: Image, config: BrokerConfig, node_id: int) -> list[r.Record]:
    """Controlled shutdown: other brokers become leaders, and it leaves every ISR that has another live
    member.

    A partition in which only this broker is in sync keeps it as leader until it stops. A repeated call does
    the rest.
    """
    broker = image.brokers[node_id]
    made: list[r.Record] = [] if broker.stopping else [broker._replace(stopping=True)]

    def live(node: int) -> bool:
        return node != node_id and image.is_live(node)

    def leave(old: r.Partition, rules: Rules) -> r.Partition:
        others = [node for node in old.isr if node != node_id]
        return settle(old, rules, live, isr=others) if any(map(live, others)) else old

    made += _each(image, config, lambda old: node_id in old.isr, leave)
    return made


def broker_removed(image: Image, config: BrokerConfig, node_id: int, live: Collection[int]) -> list[r.Record]:
    """Unregister a broker. Its replicas stay assigned to it until they are reassigned."""
    if node_id not in image.brokers:
        raise Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"no broker has the id {node_id}")
    if node_id in live:
        raise Refusal(
            ErrorCode.INVALID_REQUEST, f"broker {node_id} is running: stop it before it is unregistered"
        )
    return [*broker_gone(image, config, node_id), r.BrokerRemoved(node_id)]


def void_eligible(
    image: Image, committed: Image, config: BrokerConfig, topics: Iterable[str]
) -> list[r.Record]:
    """Clear the eligible replicas after `min.insync.replicas` was changed in `committed`.

    If the ISR is large enough now, no other replica is eligible, even if the setting is raised again.
    Elsewhere the eligible replicas still have all committed records.
    """
    made: list[r.Record] = []
    for name in topics:
        rules = rules_of(committed, config, name)
        made += [
            old._replace(eligible=(), partition_epoch=old.partition_epoch + 1)
            for old in image.topics[name].partitions
            if old.eligible and len(old.isr) >= min_isr_of(rules, old.replicas)
        ]
    return made


def _change(
    image: Image, config: BrokerConfig, gone: Collection[r.BrokerRegistration], came: Collection[Registration]
) -> list[r.Record]:
    """Fence `gone`, register `came`, and elect leaders for partitions without one, where possible."""
    absent = {broker.node_id for broker in gone}
    fresh = {registration.node_id for registration in came}
    unclean = frozenset(registration.node_id for registration in came if not registration.clean)
    careless = frozenset(registration.node_id for registration in came if not registration.durable) & unclean
    # Flushed records are lost: no flush policy helps against that (R12).
    damaged = frozenset(registration.node_id for registration in came if registration.damaged)
    alive = fresh.union(node for node in image.brokers if image.is_live(node)) - absent
    changed = absent | fresh

    def lost(rules: Rules) -> frozenset[int]:
        if not rules.durable:
            return unclean | damaged
        return damaged if rules.durable_everywhere else careless | damaged

    def concerned(old: r.Partition) -> bool:
        return old.leader == NO_LEADER or not changed.isdisjoint(old.replicas)

    def change(old: r.Partition, rules: Rules) -> r.Partition:
        return settle(
            old, rules, alive.__contains__,
            isr=[node for node in old.isr if node not in absent],
            lost=lost(rules),
            anew=old.leader in fresh,
        )  # fmt: skip

    made = _each(image, config, concerned, change)
    made += [broker._replace(fenced=True) for broker in gone]
    made += [
        r.BrokerRegistration(
            each.node_id, each.epoch, each.host, each.port, each.rack, directories=tuple(each.directories)
        )
        for each in came
    ]
    return made


def _each(
    image: Image,
    config: BrokerConfig,
    concerned: Callable[[r.Partition], bool],
    change: Callable[[r.Partition, Rules], r.Partition],
) -> list[r.Record]:
    """The changed partitions; settings are resolved once per topic."""
    made: list[r.Record] = []
    for topic in image.topics.values():
        rules: Rules | None = None
        for old in topic.partitions:
            if not concerned(old):
                continue
            if rules is None:
                rules = rules_of(image, config, topic.name)
            new = change(old, rules)
            if new is not old:
                made.append(new)
    return made
