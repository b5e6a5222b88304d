from __future__ import annotations

import pytest

from ottla.config.alter import APPEND, DELETE, SET, SUBTRACT, apply_broker_ops, apply_ops
from ottla.config.broker import BrokerConfig
from ottla.config.definition import InvalidConfig
from ottla.model.errors import ErrorCode, Refusal


def test_the_operations_have_the_protocols_numbers() -> None:
    assert (SET, DELETE, APPEND, SUBTRACT) == (0, 1, 2, 3)


def test_set_and_delete_leave_the_rest_and_the_input_alone() -> None:
    current = {"retention.ms": "1", "segment.bytes": "1000"}
    assert apply_ops(current, [("retention.ms", SET, " 02"), ("segment.bytes", DELETE, None)]) == {
        "retention.ms": "2"
    }
    assert current == {"retention.ms": "1", "segment.bytes": "1000"}
    assert apply_ops({}, [("segment.bytes", DELETE, None)]) == {}


def test_append_and_subtract_edit_lists() -> None:
    compact = {"cleanup.policy": "compact"}
    assert apply_ops(compact, [("cleanup.policy", APPEND, "delete")]) == {"cleanup.policy": "compact,delete"}
    assert apply_ops(compact, [("cleanup.policy", APPEND, "compact")]) == compact
    both = {"cleanup.policy": "compact,delete"}
    assert apply_ops(both, [("cleanup.policy", SUBTRACT, "delete")]) == compact
    assert apply_ops(compact, [("cleanup.policy", SUBTRACT, "delete")]) == compact


def test_a_list_that_is_not_overridden_begins_as_its_default() -> None:
    assert apply_ops({}, [("cleanup.policy", APPEND, "compact")]) == {"cleanup.policy": "delete,compact"}
    broker = BrokerConfig.from_properties({"log.cleanup.policy": "compact"})
    assert apply_ops({}, [("cleanup.policy", APPEND, "delete")], broker) == {
        "cleanup.policy": "compact,delete"
    }


@pytest.mark.parametrize(
    ("op", "code", "message"),
    [
        (
            ("retention.ms", APPEND, "1"),
            ErrorCode.INVALID_CONFIG,
            "APPEND to configuration retention.ms: it is a long",
        ),
        (("retention.ms", SUBTRACT, "1"), ErrorCode.INVALID_CONFIG, "SUBTRACT to configuration retention.ms"),
        (("retention.ms", SET, "abc"), ErrorCode.INVALID_CONFIG, "Invalid value abc"),
        (("retention.ms", SET, None), ErrorCode.INVALID_CONFIG, "Null value"),
        (("cleanup.policy", APPEND, "shrink"), ErrorCode.INVALID_CONFIG, "list of compact, delete"),
        (
            ("leader.replication.throttled.replicas", APPEND, "x"),
            ErrorCode.INVALID_CONFIG,
            "PARTITION:BROKER",
        ),
        (("retention.mss", DELETE, None), ErrorCode.INVALID_CONFIG, "did you mean retention.ms"),
        (("retention.ms", 4, "1"), ErrorCode.INVALID_REQUEST, "Unknown operation 4"),
        (
            ("min.compaction.lag.ms", SET, "6"),
            ErrorCode.INVALID_CONFIG,
            "must be at most max.compaction.lag.ms",
        ),
    ],
)
def test_what_does_not_fit_is_refused(op: tuple[str, int, str | None], code: ErrorCode, message: str) -> None:
    with pytest.raises(Refusal, match=message) as refused:
        apply_ops({"max.compaction.lag.ms": "5"}, [op])
    assert refused.value.code == code


def test_one_setting_is_altered_once_a_request() -> None:
    with pytest.raises(Refusal, match="more than once") as refused:
        apply_ops({}, [("retention.ms", SET, "1"), ("retention.ms", DELETE, None)])
    assert refused.value.code == ErrorCode.INVALID_REQUEST


def test_a_broker_takes_at_run_time_what_is_not_read_only() -> None:
    assert apply_broker_ops({}, [("log.retention.ms", SET, "5")]) == {"log.retention.ms": "5"}
    assert apply_broker_ops({"log.retention.ms": "5"}, [("log.retention.ms", DELETE, None)]) == {}
    with pytest.raises(InvalidConfig, match=r"num\.partitions cannot be changed at run time"):
        apply_broker_ops({}, [("num.partitions", SET, "5")])
    with pytest.raises(InvalidConfig, match="Unknown broker config name"):
        apply_broker_ops({}, [("retention.ms", SET, "5")])
