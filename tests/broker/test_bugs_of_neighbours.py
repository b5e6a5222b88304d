"""Bugs that other brokers had, each with the test that holds it off here; those whose feature is not served yet are named too.

The table is checked against the tests there are, so that none goes without anybody noticing. What had no test elsewhere
follows below it.
"""

import ast
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent.parent

HELD_OFF_BY = {
    "a fetch in the middle of a batch returns the whole batch": [
        "broker/api/test_fetch.py::test_a_fetch_in_the_middle_of_a_batch_returns_the_whole_batch",
    ],
    "max.message.bytes is enforced: MESSAGE_TOO_LARGE": [
        "broker/api/test_produce.py::test_max_message_bytes_is_the_limit_of_a_batch",
        "clients/test_produce_consume.py::test_a_message_beyond_max_message_bytes_is_refused",
    ],
    "ListOffsets by time, and for an empty partition; earliest, latest, max-timestamp, earliest-local": [
        "broker/api/test_list_offsets.py::test_the_ends",
        "broker/api/test_list_offsets.py::test_a_time_gives_the_first_record_that_is_not_older",
        "broker/api/test_list_offsets.py::test_the_newest_timestamp",
        "broker/api/test_list_offsets.py::test_an_empty_partition",
        "broker/test_bugs_of_neighbours.py::test_an_empty_partition_answers_every_special_time",
    ],
    "DescribeConfigs answers every config, defaults and sources included, synonyms on request": [
        "broker/api/test_configs.py::test_every_config_of_a_topic_with_its_source",
        "broker/api/test_configs.py::test_every_config_of_the_broker",
        "broker/api/test_configs.py::test_synonyms_and_documentation_on_request",
    ],
    "keyless records on compacted topics: INVALID_RECORD": [
        "broker/api/test_produce.py::test_a_compacted_topic_takes_no_record_without_a_key",
        "clients/test_topics.py::test_keyless_records_on_a_compacted_topic",
    ],
    "auto-creation by Metadata honours num.partitions and the request's flag": [
        "broker/api/test_topics.py::test_a_missing_topic_is_made_with_the_default_number_of_partitions",
        "broker/api/test_topics.py::test_a_missing_topic_is_not_made_against_the_requests_flag",
        "broker/api/test_topics.py::test_a_missing_topic_is_not_made_against_the_brokers_setting",
    ],
    "CreatePartitions and the like echo each topic asked for; validate_only changes nothing": [
        "broker/api/test_topics.py::test_each_topic_is_echoed",
        "broker/api/test_topics.py::test_validate_only_changes_nothing",
        "broker/api/test_topics.py::test_widening_with_validate_only_changes_nothing",
        "broker/api/test_configs.py::test_validate_only_changes_nothing",
        "broker/api/test_alter_configs.py::test_validate_only_changes_nothing",
        "broker/test_bugs_of_neighbours.py::test_every_topic_asked_for_is_answered_whatever_the_api",
    ],
    "advertise 127.0.0.1, not localhost": [
        "runtime/test_connections.py::test_the_address_is_a_number",
        "broker/test_bugs_of_neighbours.py::test_the_broker_advertises_an_address_and_not_localhost",
    ],
    "any partition leader epoch in a produced batch is accepted and overwritten": [
        "broker/api/test_produce.py::test_any_leader_epoch_is_accepted_and_overwritten",
    ],
    "duplicate topics in a request": [
        "broker/api/test_topics.py::test_a_topic_named_twice_is_answered_once_and_not_made",
        "broker/api/test_topics.py::test_a_topic_named_twice_is_not_widened",
        "broker/api/test_topics.py::test_a_topic_named_twice_stays",
        "broker/api/test_list_offsets.py::test_a_partition_asked_for_twice",
        "broker/test_bugs_of_neighbours.py::test_a_partition_twice_in_one_produce_is_answered_twice",
    ],
    "empty names, names with bad characters, . and .., over 249 characters": [
        "broker/api/test_topics.py::test_bad_names",
        "broker/api/test_topics.py::test_bad_names_are_not_made",
        "broker/api/test_topics.py::test_the_longest_name",
    ],
}

#: With transactions and groups, which are not served yet.
NOT_YET = (
    "aborted records never reach a read_committed consumer",
    "the metadata string of a committed offset comes back",
    "transaction.timeout.ms above the maximum: INVALID_TRANSACTION_TIMEOUT",
    "UNKNOWN_MEMBER_ID, REBALANCE_IN_PROGRESS, ILLEGAL_GENERATION, MEMBER_ID_REQUIRED at the right moments",
)


@pytest.mark.parametrize("bug", HELD_OFF_BY)
def test_the_tests_that_are_named_are_there(bug: str) -> None:
    for name in HELD_OFF_BY[bug]:
        file, _, function = name.partition("::")
        tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


# --- what had no test of its own ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("time", "offset"), [(-1, 0), (-2, 0), (-3, -1), (-4, 0), (0, -1)])
def test_an_empty_partition_answers_every_special_time(client: Any, time: int, offset: int) -> None:
    client.create("t")
    rows = [{"partition_index": 0, "timestamp": time, "current_leader_epoch": -1}]
    answer = client.ask(2, 8, replica_id=-1, isolation_level=0, topics=[{"name": "t", "partitions": rows}])
    row = answer.topics[0].partitions[0]
    assert (row.error_code.value, row.offset) == (0, offset)


def test_every_topic_asked_for_is_answered_whatever_the_api(client: Any, batch: Any) -> None:
    """The good and the bad, in an answer of their own each."""
    client.create("t")
    names = ["t", "missing"]

    def rows(number: str, **more: Any) -> list[dict[str, Any]]:
        return [{"name": name, "topic": name, "partitions": [{number: 0, **more}]} for name in names]

    listed = client.ask(2, 7, replica_id=-1, isolation_level=0, topics=rows("partition_index", timestamp=-1))
    assert [topic.name for topic in listed.topics] == names
    deleted = client.ask(21, 2, topics=rows("partition_index", offset=0), timeout=1000)
    assert sorted(topic.name for topic in deleted.topics) == sorted(names)
    epochs = client.ask(23, 4, replica_id=-1, topics=rows("partition", leader_epoch=0))
    assert sorted(topic.topic for topic in epochs.topics) == sorted(names)
    widened = client.ask(37, 3, topics=[{"name": name, "count": 3} for name in names], timeout=1000)
    assert sorted(topic.name for topic in widened.results) == sorted(names)
    gone = client.ask(20, 6, topics=[{"name": name} for name in names], timeout=1000)
    assert sorted(topic.name for topic in gone.responses) == sorted(names)


def test_the_broker_advertises_an_address_and_not_localhost(client: Any) -> None:
    """`localhost` may mean ::1 first, where nobody listens."""
    assert [node.host for node in client.ask(3, 12, topics=[]).brokers] == ["127.0.0.1"]
    assert [node.host for node in client.ask(60, 0).brokers] == ["127.0.0.1"]


def test_a_partition_twice_in_one_produce_is_answered_twice(client: Any, batch: Any, values: Any) -> None:
    """Kafka takes the last batch and drops the others in silence. Here the first is taken, and the others are refused."""
    client.create("t")
    rows = [{"index": 0, "records": batch(b"one")}, {"index": 0, "records": batch(b"two")}]
    answer = client.ask(0, 12, acks=-1, timeout=1000, topic_data=[{"name": "t", "partition_data": rows}])
    found = [row for topic in answer.responses for row in topic.partition_responses]
    assert [(row.error_code.value, row.base_offset) for row in found] == [(0, 0), (42, -1)]
    assert "t-0 more than once" in found[1].error_message
    assert values(client.fetch("t", 0)) == [b"one"]
