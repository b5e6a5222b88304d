"""Kafka settings that are common in a server.properties and have no effect here, each with the reason.

The start accepts them with a warning. Security settings are not among them: a broker that ignored one would
look protected, so an unknown one stops the start.

Those that Kafka can change at run time (`DYNAMIC_WITHOUT_EFFECT`) are accepted by AlterConfigs and
IncrementalAlterConfigs too, so that existing scripts work. The broker logs that they have no effect.
DescribeConfigs shows the values that were set.
"""

from __future__ import annotations

from ottla.config.definition import CLUSTER_WIDE, Definition, table

_NAMES_BY_REASON = {
    "ottla has no KRaft quorum; listeners in controller.listener.names are not opened": (
        "process.roles",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "inter.broker.listener.name",
    ),
    "one event loop serves all requests; there are no such threads or queues": (
        "background.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "queued.max.requests",
    ),
    "one worker process compacts one log at a time": ("log.cleaner.threads",),
    "compaction reads 4 MiB and writes 1 MiB at a time": ("log.cleaner.io.buffer.size",),
    "log start offsets are checkpointed when they change": ("log.flush.start.offset.checkpoint.interval.ms",),
    "coordinators read their logs 256 KiB at a time": (
        "offsets.load.buffer.size",
        "transaction.state.log.load.buffer.size",
    ),
    "ottla has no tiered storage": (
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "remote.fetch.max.wait.ms",
        "remote.list.offsets.request.timeout.ms",
        "remote.log.index.file.cache.total.size.bytes",
        "remote.log.manager.copier.thread.pool.size",
        "remote.log.manager.copy.max.bytes.per.second",
        "remote.log.manager.expiration.thread.pool.size",
        "remote.log.manager.fetch.max.bytes.per.second",
        "remote.log.manager.follower.thread.pool.size",
        "remote.log.reader.threads",
    ),
    "ottla has no share groups": (
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.replication.factor",
    ),
}

NOT_HONOURED: dict[str, str] = {name: reason for reason, names in _NAMES_BY_REASON.items() for name in names}

#: Name → (type, minimum) of those that Kafka can change at run time.
_DYNAMIC = {
    "background.threads": ("int", 1),
    "log.cleaner.io.buffer.size": ("int", 0),
    "log.cleaner.threads": ("int", 0),
    "log.local.retention.bytes": ("long", -2),
    "log.local.retention.ms": ("long", -2),
    "num.io.threads": ("int", 1),
    "num.network.threads": ("int", 1),
    "num.recovery.threads.per.data.dir": ("int", 1),
    "remote.fetch.max.wait.ms": ("int", 1),
    "remote.list.offsets.request.timeout.ms": ("long", 1),
    "remote.log.index.file.cache.total.size.bytes": ("long", 1),
    "remote.log.manager.copier.thread.pool.size": ("int", 1),
    "remote.log.manager.copy.max.bytes.per.second": ("long", 1),
    "remote.log.manager.expiration.thread.pool.size": ("int", 1),
    "remote.log.manager.fetch.max.bytes.per.second": ("long", 1),
    "remote.log.manager.follower.thread.pool.size": ("int", 1),
    "remote.log.reader.threads": ("int", 1),
}

DYNAMIC_WITHOUT_EFFECT: dict[str, Definition] = table(
    Definition(
        name, kind, None, f"No effect here: {NOT_HONOURED[name]}.", minimum=minimum, dynamic=CLUSTER_WIDE
    )
    for name, (kind, minimum) in _DYNAMIC.items()
)


def no_effect(name: str) -> str:
    """The line for the broker's log."""
    return f"{name} has no effect here: {NOT_HONOURED[name]}"
