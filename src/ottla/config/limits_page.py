"""Renders docs/limits.md: the fixed limits of `model/limits.py`, and the settings that are limits.

Run `python -m ottla.config.limits_page > docs/limits.md`. A test compares the file with `render()`.
"""

from __future__ import annotations

from ottla.config.broker_table import BROKER
from ottla.config.markdown import default_cell, table_line
from ottla.model.limits import LIMITS, SECTIONS, Limit

INTRODUCTION = """\
# Limits

<!-- Rendered by `python -m ottla.config.limits_page`; edit `src/ottla/model/limits.py` or the tables in `src/ottla/config/` instead. -->

These limits keep one client from slowing down, stopping or filling the broker for others. A request above a limit fails
with an error of the protocol and a message, or its connection is closed and the reason is logged once.

## Settings

These limits are settings; [configuration.md](configuration.md) lists all settings.
"""

#: Settings that limit what a client can cost.
LIMIT_SETTINGS = (
    "socket.request.max.bytes",
    "queued.max.request.bytes",
    "socket.request.timeout.ms",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "max.connection.creation.rate",
    "max.connection.creation.rate.per.ip",
    "connections.max.idle.ms",
    "message.max.bytes",
    "max.incremental.fetch.session.cache.slots",
    "group.max.size",
    "group.consumer.max.size",
    "offset.metadata.max.bytes",
    "group.max.session.timeout.ms",
    "transaction.max.timeout.ms",
    "transactional.id.expiration.ms",
    "producer.id.expiration.ms",
)


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "\n| name | default | meaning |\n|---|---|---|\n"]
    parts += (
        table_line(f"`{name}`", default_cell(BROKER[name]), BROKER[name].doc) for name in LIMIT_SETTINGS
    )
    for section in SECTIONS:
        rows = [limit for limit in LIMITS if limit.section == section]
        if rows:
            parts.append(f"\n## {section}\n\n| limit | value | reason | above it |\n|---|---|---|---|\n")
            parts += map(_line, rows)
    return "".join(parts)


def _line(limit: Limit) -> str:
    return table_line(limit.what, f"{limit.value:,}", limit.reason, limit.outcome)


if __name__ == "__main__":
    print(render(), end="")
