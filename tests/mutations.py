"""One request for each API that changes metadata, for tests of what it answers while the metadata log cannot be written."""

from collections.abc import Iterator
from typing import Any, Final

from ottla.broker.api.shared.api_table import APIS

#: The time-out of requests that have one.
TIMEOUT_MS: Final = 2_000
TOPIC: Final = "t"

#: By API key. The topic `t` has one partition, led by broker 1 unless `leader` says otherwise.
BY_CONTROLLER: Final[dict[int, dict[str, Any]]] = {
    19: {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1}], "timeout": TIMEOUT_MS},
    20: {"topics": [{"name": TOPIC, "topic_id": None}], "timeout": TIMEOUT_MS},
    33: {
        "resources": [
            {
                "resource_type": 2, "resource_name": TOPIC,
                "configs": [{"name": "retention.ms", "value": "1000"}],
            }
        ]
    },
    37: {"topics": [{"name": TOPIC, "count": 5, "assignments": None}], "timeout": TIMEOUT_MS},
    43: {
        "election_type": 0, "topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "timeout": TIMEOUT_MS,
    },
    44: {
        "resources": [
            {
                "resource_type": 2, "resource_name": TOPIC,
                "configs": [{"name": "retention.ms", "config_operation": 0, "value": "2000"}],
            }
        ]
    },
    45: {
        "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": [2, 3]}]}],
        "timeout": TIMEOUT_MS,
    },
    46: {"topics": None, "timeout": TIMEOUT_MS},
    57: {"feature_updates": [], "timeout": TIMEOUT_MS},
    64: {"broker_id": 4},
}  # fmt: skip


def changes_nothing(key: int) -> bool:
    """Whether an API of the controller writes no metadata, so that it is answered at once."""
    return not APIS[key].changes_metadata


def error_codes(answer: Any) -> Iterator[int]:
    """Every error code in an answer, at any depth."""
    for name in getattr(answer, "__dataclass_fields__", ()):
        value = getattr(answer, name)
        if name == "error_code":
            yield int(value)
        elif isinstance(value, tuple | list):
            for each in value:
                yield from error_codes(each)
