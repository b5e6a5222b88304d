"""Settings that an existing server.properties commonly holds and that mean nothing here, with the reason.

They are accepted and reported at start, and never described as if they worked. Security settings are not among
them: a broker that ignored one would look protected, so an unknown one stops the start.
"""

from __future__ import annotations

_NAMES_BY_REASON = {
    "ottla has no KRaft quorum; listeners named in controller.listener.names are left out": (
        "process.roles",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "inter.broker.listener.name",
    ),
    "one event loop serves everything; there are no such threads or queues": (
        "background.threads",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "queued.max.requests",
    ),
    "one worker process compacts, a log at a time": ("log.cleaner.threads",),
    "compaction reads 4 MiB and writes 1 MiB at a time": ("log.cleaner.io.buffer.size",),
    "log starts are written down as soon as they move": ("log.flush.start.offset.checkpoint.interval.ms",),
    "coordinators read their logs 256 KiB at a time": (
        "offsets.load.buffer.size",
        "transaction.state.log.load.buffer.size",
    ),
    "there is no tiered storage": ("log.local.retention.bytes", "log.local.retention.ms"),
    "the topic it shapes does not exist yet": (
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.replication.factor",
    ),
}

NOT_HONOURED: dict[str, str] = {name: reason for reason, names in _NAMES_BY_REASON.items() for name in names}
