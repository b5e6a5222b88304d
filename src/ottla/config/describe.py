"""The rows of DescribeConfigs: every setting with its value, source and synonyms.

Pure functions. `broker/api` encodes the rows and the command line prints them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ottla.config.broker import DEFAULT, DYNAMIC_DEFAULT_BROKER, BrokerConfig, in_topic_unit
from ottla.config.broker_table import BROKER
from ottla.config.consumer_table import GROUP
from ottla.config.definition import READ_ONLY, Definition
from ottla.config.not_honoured import DYNAMIC_WITHOUT_EFFECT
from ottla.config.topic_table import TOPIC

DYNAMIC_TOPIC = 1
DYNAMIC_GROUP = 8

TYPE_CODES = {
    "boolean": 1,
    "string": 2,
    "int": 3,
    "short": 4,
    "long": 5,
    "double": 6,
    "list": 7,
    "class": 8,
    "password": 9,
}

# `broker.id` is another name for `node.id`; a description of either shows both.
ALIASES = {"broker.id": ("broker.id", "node.id"), "node.id": ("node.id", "broker.id")}


class Synonym(NamedTuple):
    name: str
    value: str | None
    source: int


class Entry(NamedTuple):
    """One described setting. `synonyms` has all sources of a value, in order of precedence."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    type_code: int
    documentation: str
    synonyms: tuple[Synonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source == DEFAULT


def describe_topic(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[Entry]:
    """Every setting of a topic, or the named ones. Unknown names are skipped, as in Kafka."""
    return [_derived_entry(row, overrides, broker, DYNAMIC_TOPIC) for row in _chosen(TOPIC, names)]


def describe_group(
    overrides: Mapping[str, str], broker: BrokerConfig, names: Collection[str] | None = None
) -> list[Entry]:
    """Every setting of a consumer group, or the named ones."""
    return [_derived_entry(row, overrides, broker, DYNAMIC_GROUP) for row in _chosen(GROUP, names)]


def describe_broker(broker: BrokerConfig, names: Collection[str] | None = None) -> list[Entry]:
    """Every setting of a broker, or the named ones. Unknown names are skipped.

    Settings without effect are returned only if they were set at run time.
    """
    entries = [_broker_entry(row, broker) for row in _chosen(BROKER, names)]
    for row in _chosen(DYNAMIC_WITHOUT_EFFECT, names):
        behind = tuple(
            Synonym(row.name, texts[row.name], source) for source, texts in broker.layers if row.name in texts
        )
        if behind:
            entries.append(_entry(row, behind[0].value, behind[0].source, behind))
    return entries


def describe_broker_default(
    dynamic_default: Mapping[str, str], names: Collection[str] | None = None
) -> list[Entry]:
    """The dynamic settings of all brokers (the broker resource with an empty name)."""
    entries = []
    for row in (*_chosen(BROKER, names), *_chosen(DYNAMIC_WITHOUT_EFFECT, names)):
        if row.name in dynamic_default:
            value = row.canonical(dynamic_default[row.name])
            synonym = Synonym(row.name, value, DYNAMIC_DEFAULT_BROKER)
            entries.append(_entry(row, value, DYNAMIC_DEFAULT_BROKER, (synonym,)))
    return entries


def _chosen(rows: Mapping[str, Definition], names: Collection[str] | None) -> Iterable[Definition]:
    if names is None:
        return rows.values()
    wanted = set(names)
    return [row for name, row in rows.items() if name in wanted]


def _derived_entry(
    row: Definition, overrides: Mapping[str, str], broker: BrokerConfig, own_source: int
) -> Entry:
    """A setting whose defaults are broker settings."""
    behind = _behind(row.broker_names, broker)
    if row.broker_names:
        # Only the last name of a chain has a default. For names that ottla lacks it is the topic's.
        last = row.broker_names[-1]
        behind.append(Synonym(last, BROKER[last].default if last in BROKER else row.default, DEFAULT))
    if row.name in overrides:
        value = row.canonical(overrides[row.name])
        return _entry(row, value, own_source, (Synonym(row.name, value, own_source), *behind))
    if not behind:
        return _entry(row, row.default, DEFAULT, ())
    strongest = behind[0]
    if strongest.name not in BROKER or strongest.value is None:
        return _entry(row, row.default, strongest.source, tuple(behind))
    inherited = in_topic_unit(strongest.name, BROKER[strongest.name].parse(strongest.value))
    return _entry(row, row.format(inherited), strongest.source, tuple(behind))


def _broker_entry(row: Definition, broker: BrokerConfig) -> Entry:
    behind = _behind(ALIASES.get(row.name, (row.name,)), broker)
    if row.default is not None:
        behind.append(Synonym(row.name, row.default, DEFAULT))
    if not behind:
        return _entry(row, None, DEFAULT, ())
    return _entry(row, behind[0].value, behind[0].source, tuple(behind))


def _behind(names: Iterable[str], broker: BrokerConfig) -> list[Synonym]:
    """The values of these names in the broker's layers: by precedence of the name, then of the layer."""
    return [
        Synonym(name, BROKER[name].canonical(texts[name]), source)
        for name in names
        if name in BROKER
        for source, texts in broker.layers
        if name in texts
    ]


def _entry(row: Definition, value: str | None, source: int, synonyms: tuple[Synonym, ...]) -> Entry:
    return Entry(
        name=row.name,
        # A secret is shown as set, without its value.
        value=None if row.sensitive else value,
        source=source,
        read_only=row.dynamic == READ_ONLY,
        sensitive=row.sensitive,
        type_code=TYPE_CODES[row.type],
        documentation=row.doc,
        synonyms=tuple(each._replace(value=None) for each in synonyms) if row.sensitive else synonyms,
    )
