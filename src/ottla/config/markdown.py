"""Renders docs/configuration.md from the tables of settings.

Run `python -m ottla.config.markdown > docs/configuration.md`. A test compares the file with `render()`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.config.broker_table import BROKER, SECTIONS
from ottla.config.consumer_table import GROUPS
from ottla.config.definition import LONG_MAX, Definition
from ottla.config.not_honoured import DYNAMIC_WITHOUT_EFFECT, NOT_HONOURED
from ottla.config.topic_table import TOPIC

INTRODUCTION = """\
# Configuration

<!-- Rendered by `python -m ottla.config.markdown`; edit the table in `src/ottla/config/` instead. -->

Names, types and defaults are Kafka's unless a row says otherwise.

Set broker settings with `--set NAME=VALUE` or in a file, in Kafka's `.properties` format or in TOML:

```toml
listeners = "PLAINTEXT://127.0.0.1:9092"
log.dirs = ["/var/lib/ottla"]
log.retention.hours = 48
"max.connections.per.ip" = 500      # in quotes, because max.connections is a setting too
```

Set topic settings when you create or alter a topic. The default of a topic setting is a broker setting. If several
broker settings are listed, the first that is set applies. An invalid value or an unknown name fails with
`INVALID_CONFIG`; the message says which values are accepted.
"""

GROUPS_NOTE = """\
Settings of the group coordinators and transaction coordinators.
"""

NOT_HONOURED_INTRODUCTION = """\
## Accepted without effect

These settings of a Kafka `server.properties` have no effect. The start accepts them with a warning. Any other unknown
name stops the start. That includes security settings: a broker that ignored one would look protected.

Kafka can change some of them at run time (`kafka-configs --alter --entity-type brokers`). ottla accepts that too. The
broker logs once that the setting has no effect, and DescribeConfigs shows the value that was set.

| name | at run time | why |
|---|---|---|
"""

TIME_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1000, "second"))
SIZE_UNITS = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "\n## Topic settings\n\n", _topic_table(TOPIC.values()), "\n## Broker settings\n"]
    for section in SECTIONS:
        parts.append(f"\n### {section}\n\n")
        if section == GROUPS:
            parts.append(f"{GROUPS_NOTE}\n")
        parts.append(_broker_table(row for row in BROKER.values() if row.section == section))
    parts.append(f"\n{NOT_HONOURED_INTRODUCTION}")
    parts.extend(
        f"| `{name}` | {'accepted' if name in DYNAMIC_WITHOUT_EFFECT else 'refused'} | {reason} |\n"
        for name, reason in sorted(NOT_HONOURED.items())
    )
    return "".join(parts)


def _topic_table(rows: Iterable[Definition]) -> str:
    lines = [
        "| name | type | default | accepted | from the broker's | meaning |\n|---|---|---|---|---|---|\n"
    ]
    for row in rows:
        brokers = ", ".join(f"`{name}`" for name in row.broker_names if name in BROKER)
        lines.append(
            table_line(f"`{row.name}`", row.type, default_cell(row), _accepted(row), brokers, row.doc)
        )
    return "".join(lines)


def _broker_table(rows: Iterable[Definition]) -> str:
    lines = ["| name | type | default | accepted | changes | meaning |\n|---|---|---|---|---|---|\n"]
    lines.extend(
        table_line(f"`{row.name}`", row.type, default_cell(row), _accepted(row), row.dynamic, row.doc)
        for row in rows
    )
    return "".join(lines)


def _accepted(row: Definition) -> str:
    # The type has its own column.
    return row.accepts.split(" that fits in ")[0]


def table_line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def default_cell(row: Definition) -> str:
    if row.default is None:
        return "not set"
    if row.default == "":
        return "empty"
    spoken = _spoken(row)
    return f"`{row.default}`" + (f" ({spoken})" if spoken else "")


def _spoken(row: Definition) -> str:
    """A duration or size in the largest unit of which it is a whole number."""
    if row.unit not in ("ms", "bytes", "records") or not (row.default or "").isdigit():
        return ""
    number = int(row.default or "")
    if number == LONG_MAX:
        return "no limit"
    for size, unit in {"ms": TIME_UNITS, "bytes": SIZE_UNITS}.get(row.unit, ()):
        if number >= size and number % size == 0:
            count = number // size
            plural = "s" if row.unit == "ms" and count > 1 else ""
            return f"{count} {unit}{plural}"
    return ""


if __name__ == "__main__":
    print(render(), end="")
