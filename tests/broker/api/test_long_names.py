"""The longest names that a request can carry, in the oldest version of each API that has names: the answer can carry them too."""

from typing import Any

import pytest

from ottla.broker.api.shared.api_table import APIS

LONGEST = "x" * 32_767
RESOURCE = {"resource_type": 2, "resource_name": LONGEST, "configs": (), "configuration_keys": None}
TOPIC = {
    "name": LONGEST,
    "topic": LONGEST,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 3,
    "partitions": [0],
}


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        (3, {"topics": [TOPIC]}),
        (19, {"topics": [TOPIC]}),
        (20, {"topic_names": [LONGEST], "topics": [TOPIC]}),
        (32, {"resources": [RESOURCE]}),
        (33, {"resources": [RESOURCE]}),
        (37, {"topics": [TOPIC]}),
        (43, {"election_type": 0, "topic_partitions": [TOPIC]}),
        (44, {"resources": [RESOURCE]}),
        (44, {"resources": [RESOURCE, RESOURCE]}),
    ],
)
def test_a_name_is_quoted_in_an_answer_that_can_be_encoded(
    client: Any, key: int, fields: dict[str, Any]
) -> None:
    for version in range(APIS[key].oldest, APIS[key].newest + 1):
        assert client.ask(key, version, **fields) is not None
