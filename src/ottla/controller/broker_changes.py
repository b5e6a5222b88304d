"""Brokers that come, go, stop and are told to go: what becomes of the partitions they have.

`reconcile` makes the image agree with those who live; everything else here is a case of it. A broker's record comes behind the
changes of its partitions: a controller that dies in the middle leaves a broker that is still to be dealt with, and the next one
does so from the start. A broker acts only under a record of its present life, so it sees its partitions settled first.

A registration with a higher epoch than that in the image is another life (R5): its earlier life has ended, whether anybody noticed or
not. What it leads goes on in a new leader epoch; unless the life before ended cleanly, or a topic's records are flushed before
they are reported, it leaves the ISR and the eligible before it may lead again (R7).
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
    """All records that make the image agree with the live registrations, and give leaders to whom can have one.

    A suspect's port refuses: it is taken for gone whatever its registration says. Once fenced it stays so until it registers anew.
    """
    gone, came = [], []
    for node, broker in image.brokers.items():
        registration = live.get(node)
        if registration is not None and registration.epoch != broker.epoch:
            # One that is older than the image was replaced; the news is on its way.
            if registration.epoch > broker.epoch:
                came.append(registration)
        elif not broker.fenced and (registration is None or node in suspects):
            gone.append(broker)
    came += [registration for node, registration in live.items() if node not in image.brokers]
    return _change(image, config, gone, came)


def broker_gone(image: Image, config: BrokerConfig, node_id: int) -> list[r.Record]:
    """The broker is fenced at once, whether its registration is still there or not."""
    broker = image.brokers.get(node_id)
    return [] if broker is None or broker.fenced else _change(image, config, [broker], [])


def broker_stopping(image: Image, config: BrokerConfig, node_id: int) -> list[r.Record]:
    """Controlled shutdown: others lead what it led, and it leaves every ISR that has another member that lives.

    Where it is the only one in sync it leads until it is gone. Asked again, it does what is left to do.
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
    """A broker that will not come back is forgotten. Its replicas stay where they are until they are reassigned."""
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
    """After a change of `min.insync.replicas`, which counts from `committed` on: beside an ISR that is now large enough
    nobody is eligible any more, even if the setting is raised again. Elsewhere who is eligible still has everything."""
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
    """`gone` are fenced and `came` begin a life; a partition that has no leader gets one if it can."""
    absent = {broker.node_id for broker in gone}
    fresh = {registration.node_id for registration in came}
    unclean = frozenset(registration.node_id for registration in came if not registration.clean)
    careless = frozenset(registration.node_id for registration in came if not registration.durable) & unclean
    # Records that were flushed are gone: no policy helps against that (R12).
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
    """The partitions that change; the settings are looked up once a topic."""
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
