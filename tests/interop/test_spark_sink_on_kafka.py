"""The commit of the Spark sink on Apache Kafka: the tests of `tests/spark/topic_sink/test_commit.py`, with another server."""

import pytest

from tests.running_broker import topic_name
from tests.spark.topic_sink.test_commit import (
    _no_kept_clients,
    test_a_first_micro_batch_without_rows_has_its_topic_made,
    test_a_micro_batch_without_rows_is_marked_under_a_name_alone,
    test_a_query_that_takes_the_name_over_shuts_the_first_one_out_though_it_writes_elsewhere,
    test_another_checkpoint_under_the_name_begins_anew_and_shuts_the_first_one_out,
    test_each_micro_batch_counts_once_however_often_it_is_committed,
    test_one_write_is_all_or_nothing,
    test_processes_that_commit_by_turns_write_each_micro_batch_once,
    test_rows_that_name_their_topics_may_come_after_micro_batches_without_any,
    test_what_was_staged_is_removed_after_the_commit,
    topic,
)

__all__ = [
    "_no_kept_clients",
    "test_a_first_micro_batch_without_rows_has_its_topic_made",
    "test_a_micro_batch_without_rows_is_marked_under_a_name_alone",
    "test_a_query_that_takes_the_name_over_shuts_the_first_one_out_though_it_writes_elsewhere",
    "test_another_checkpoint_under_the_name_begins_anew_and_shuts_the_first_one_out",
    "test_each_micro_batch_counts_once_however_often_it_is_committed",
    "test_one_write_is_all_or_nothing",
    "test_processes_that_commit_by_turns_write_each_micro_batch_once",
    "test_rows_that_name_their_topics_may_come_after_micro_batches_without_any",
    "test_what_was_staged_is_removed_after_the_commit",
    "topic",
    "topic_name",
]


@pytest.fixture
def ottla_address(kafka: str) -> str:
    return kafka
