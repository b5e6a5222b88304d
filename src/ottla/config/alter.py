"""IncrementalAlterConfigs as a function: overrides and operations give new overrides.

Either all operations are applied or none. The result has canonical texts. The operations are the protocol's:
set and delete for every setting, append and subtract for lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.config.broker import BrokerConfig
from ottla.config.broker_table import BROKER
from ottla.config.consumer_table import GROUP, check_group
from ottla.config.definition import READ_ONLY, Definition, InvalidConfig, Value, unknown_name
from ottla.config.not_honoured import DYNAMIC_WITHOUT_EFFECT
from ottla.config.topic import NAMES, validate
from ottla.config.topic_table import TOPIC
from ottla.model.errors import ErrorCode, Refusal

SET, DELETE, APPEND, SUBTRACT = range(4)
OPERATIONS = {SET: "SET", DELETE: "DELETE", APPEND: "APPEND", SUBTRACT: "SUBTRACT"}

Op = tuple[str, int, str | None]

_BROKER_AND_WITHOUT_EFFECT = {**BROKER, **DYNAMIC_WITHOUT_EFFECT}


def apply_ops(
    current: Mapping[str, str], ops: Iterable[Op], broker: BrokerConfig | None = None
) -> dict[str, str]:
    """The overrides of a topic after the operations. A list that is not overridden starts as its default."""
    inherited: dict[str, Value] = {}
    if broker is not None:
        inherited = dict(zip(NAMES, broker.topic_defaults, strict=True))
    result = _applied("topic", TOPIC, current, ops, inherited)
    validate(result, broker)
    return result


def apply_broker_ops(current: Mapping[str, str], ops: Iterable[Op]) -> dict[str, str]:
    """The dynamic settings of a broker, or of all brokers, after the operations."""
    checked = list(ops)
    for name, _, _ in checked:
        if name in BROKER and BROKER[name].dynamic == READ_ONLY:
            raise InvalidConfig(
                f"{name} cannot be changed at run time: set it in the broker's configuration and restart"
            )
    return _applied("broker", _BROKER_AND_WITHOUT_EFFECT, current, checked, {})


def apply_group_ops(current: Mapping[str, str], ops: Iterable[Op], broker: BrokerConfig) -> dict[str, str]:
    """The settings of a consumer group after the operations."""
    result = _applied("group", GROUP, current, ops, {})
    check_group(result, broker)
    return result


def _applied(
    kind: str,
    rows: Mapping[str, Definition],
    current: Mapping[str, str],
    ops: Iterable[Op],
    inherited: Mapping[str, Value],
) -> dict[str, str]:
    result = dict(current)
    seen: set[str] = set()
    for name, op, text in ops:
        row = rows.get(name)
        if row is None:
            raise unknown_name(kind, name, rows)
        if op not in OPERATIONS:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operation {op} for configuration {name}")
        if name in seen:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"Configuration {name} is altered more than once in one request"
            )
        seen.add(name)
        if op == DELETE:
            result.pop(name, None)
        elif op == SET:
            result[name] = row.canonical(text)
        else:
            result[name] = _edited(row, op, text, result.get(name), inherited)
    return result


def _edited(
    row: Definition, op: int, text: str | None, override: str | None, inherited: Mapping[str, Value]
) -> str:
    """A list with items appended or removed."""
    if row.type != "list":
        raise InvalidConfig(
            f"Cannot {OPERATIONS[op]} to configuration {row.name}: it is a {row.type}, not a list"
        )
    items = row.parse(text)
    if override is None and row.name in inherited:
        before = inherited[row.name]
    else:
        before = row.parse(override if override is not None else row.default or "")
    assert isinstance(items, tuple)
    assert isinstance(before, tuple)
    if op == APPEND:
        after = before + tuple(item for item in items if item not in before)
    else:
        after = tuple(item for item in before if item not in items)
    return row.canonical(",".join(after))
