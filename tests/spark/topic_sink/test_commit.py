"""The commit without Spark: task output on a real broker, with lost responses and killed brokers."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import ottla
from ottla.client.errors import KafkaError, OffsetOutOfRange
from ottla.client.metadata import TopicPartition
from ottla.client.offsets import EARLIEST
from ottla.client.producer import transactions
from ottla.records.record import Record, encode_batch
from ottla.spark import clients
from ottla.spark.topic_sink import commit as commit_module
from ottla.spark.topic_sink.batch import OttlaWriter
from ottla.spark.topic_sink.commit import commit_micro_batch, commit_write
from ottla.spark.topic_sink.encoder import EncodedBatch
from ottla.spark.topic_sink.marker import CheckpointMismatch
from ottla.spark.topic_sink.plan import Plan, read_plan
from ottla.spark.topic_sink.staged_batches import PARTITIONS, Stage, TaskOutput, clean, staging_producer
from tests.broker_proxy import PRODUCE, Proxy, refuse_produces
from tests.sdk.reading import eventually
from tests.spark.topic_sink.committed_records import read_topic
from tests.spark.topic_sink.test_plan import VALUE

END_TXN, TXN_OFFSET_COMMIT = 26, 28


@pytest.fixture(autouse=True)
def _no_kept_clients() -> Iterator[None]:
    """Each test has a process of its own, as far as clients go."""
    yield
    forget_clients()


def forget_clients() -> None:
    for kept in clients._idle.values():
        for each in kept:
            each.close()
    clients._idle.clear()


def plan_of(address: str, topic: str, **options: str) -> Plan:
    given = {"kafka.bootstrap.servers": address, "topic": topic, "kafka.retry.backoff.ms": "20", **options}
    return read_plan(given, VALUE)


def batch_of(*values: str) -> bytes:
    return encode_batch([Record(0, 1000, None, value.encode(), ()) for value in values])


def prepared(plan: Plan, values: list[str], *, query: str = "query", task: int = 0) -> TaskOutput:
    """What a task would hand over, two values a batch."""
    assert plan.topic is not None
    with staging_producer(plan) as producer:
        stage = Stage(plan, producer, query, task)
        for start in range(0, len(values), 2):
            stage.put(EncodedBatch(plan.topic, start // 2 % 2, batch_of(*values[start : start + 2])))
        return stage.prepared(len(values))


def values_of(address: str, topic: str) -> list[str]:
    return sorted((row.value or b"").decode() for row in read_topic(address, topic))


def marked(address: str, topic: str) -> int:
    """The marker of the sink that is named like the topic, when the transaction has ended in all places."""
    place, group = TopicPartition(topic, 0), f"ottla-sink-{topic}"
    with ottla.Admin(address) as admin:
        found = admin.list_group_offsets([group], stable=True, partitions=[place])
        return found[group][place].offset


@pytest.fixture
def topic(ottla_address: str, topic_name: str) -> str:
    with ottla.Admin(ottla_address) as admin:
        admin.create_topic(topic_name, 2)
    return topic_name


@pytest.mark.parametrize("level", [2, 99], ids=["implicit", "announced"])
@pytest.mark.parametrize("message_bytes", [10_000, 150, 0], ids=["here", "both", "staged"])
def test_each_micro_batch_counts_once_however_often_it_is_committed(
    ottla_address: str, topic: str, monkeypatch: pytest.MonkeyPatch, level: int, message_bytes: int
) -> None:
    monkeypatch.setattr(transactions, "IMPLICIT_LEVEL", level)
    plan = plan_of(ottla_address, topic, maxMessageBytes=str(message_bytes))
    expected = []
    for batch_id in range(3):
        tasks = [[f"{batch_id}-{task}-{number}" for number in range(6)] for task in range(2)]
        expected += tasks[0] + tasks[1]
        for _ in range(2):
            messages = [prepared(plan, rows, task=task, query=topic) for task, rows in enumerate(tasks)]
            assert all(bool(message.staged) == (message_bytes < 10_000) for message in messages)
            # A task that failed after it had staged: nobody commits what it left.
            prepared(plan, ["never"] * 6, query=topic)
            commit_micro_batch(plan, messages, batch_id)
            if batch_id == 1:
                # Another process: the producer is a new one.
                forget_clients()
    found = read_topic(ottla_address, topic)
    assert sorted((row.value or b"").decode() for row in found) == sorted(expected)
    for partition in range(2):
        of_task = [
            row.value or b"" for row in found if row.partition == partition and b"-1-" in (row.value or b"")
        ]
        assert of_task == sorted(of_task), "a task's rows keep their order within a partition"


def test_the_messages_of_many_tasks_stay_small(ottla_address: str, topic: str) -> None:
    plan = plan_of(ottla_address, topic, maxMessageBytes="10000", sinkId=topic)
    many = [f"{number}" * 50 for number in range(10)]
    assert not prepared(plan, many, task=255).staged
    assert prepared(plan, many, task=256).staged


def test_what_was_staged_is_removed_after_the_commit(ottla_address: str, topic: str) -> None:
    plan = plan_of(ottla_address, topic, maxMessageBytes="0", sinkId=topic)
    message = prepared(plan, ["a", "b", "c", "d"], task=PARTITIONS + 1)
    place = TopicPartition(f"ottla-staging-{topic}", 1)
    assert message.staging == place
    with ottla.Admin(ottla_address) as admin:
        assert admin.list_offsets({place: EARLIEST})[place].offset == 0
        commit_micro_batch(plan, [message], 0)
        assert admin.list_offsets({place: EARLIEST})[place].offset == 2
    # Whoever commits what is removed hears of it, and nothing of it counts.
    with pytest.raises(OffsetOutOfRange):
        commit_micro_batch(plan, [message], 1)
    clean(plan, [None, message])
    assert values_of(ottla_address, topic) == ["a", "b", "c", "d"]


def test_processes_that_commit_by_turns_write_each_micro_batch_once(ottla_address: str, topic: str) -> None:
    """Workers of one driver, or a driver that was taken for dead and its successor."""
    plan = plan_of(ottla_address, topic, sinkId=topic)
    commit_micro_batch(plan, [prepared(plan, ["a"])], 0)
    old = dict(clients._idle)
    clients._idle.clear()
    commit_micro_batch(plan, [prepared(plan, ["b"])], 1)
    forget_clients()
    clients._idle.update(old)
    # It comes back in the middle of the batch that the other one has done, and of one that nobody has.
    commit_micro_batch(plan, [prepared(plan, ["b"])], 1)
    commit_micro_batch(plan, [prepared(plan, ["c"])], 2)
    forget_clients()
    commit_micro_batch(plan, [prepared(plan, ["c"])], 2)
    assert values_of(ottla_address, topic) == ["a", "b", "c"]


def test_another_checkpoint_under_the_name_begins_anew_and_shuts_the_first_one_out(
    ottla_address: str, topic: str
) -> None:
    plan = plan_of(ottla_address, topic, sinkId=topic)
    commit_micro_batch(plan, [prepared(plan, ["a"], query="first")], 0)
    commit_micro_batch(plan, [prepared(plan, ["b"], query="second")], 0)
    with pytest.raises(CheckpointMismatch, match="belongs to the query second,"):
        commit_micro_batch(plan, [prepared(plan, ["c"], query="first")], 1)
    adopting = plan_of(ottla_address, topic, sinkId=topic, adoptCheckpoint="true")
    commit_micro_batch(adopting, [prepared(plan, ["c"], query="first")], 1)
    assert values_of(ottla_address, topic) == ["a", "b", "c"]


def test_a_query_that_takes_the_name_over_shuts_the_first_one_out_though_it_writes_elsewhere(
    ottla_address: str, topic: str
) -> None:
    first, gone, second = (plan_of(ottla_address, f"{topic}{end}", sinkId=topic) for end in ("", "-2", "-3"))
    with ottla.Admin(ottla_address) as admin:
        for each in (gone, second):
            admin.create_topic(str(each.topic), 2)
        commit_micro_batch(first, [prepared(first, ["a"], query="first")], 0)
        commit_micro_batch(gone, [prepared(gone, ["x"], query="first")], 1)
        admin.delete_topics([str(gone.topic)])
        # Kafka answers before all of it knows.
        eventually(lambda: str(gone.topic) not in admin.list_topics(), "the topic is gone")
        commit_micro_batch(second, [prepared(second, ["b"], query="second")], 0)
    with pytest.raises(CheckpointMismatch, match="belongs to the query second,"):
        commit_micro_batch(first, [prepared(first, ["c"], query="first")], 2)
    commit_micro_batch(second, [prepared(second, ["d"], query="second")], 1)
    assert values_of(ottla_address, topic) == ["a"]
    assert values_of(ottla_address, str(second.topic)) == ["b", "d"]


def test_a_producer_asks_for_its_name_once_before_each_commit(
    ottla_address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[ottla.Producer] = []
    renew = ottla.Producer.renew
    monkeypatch.setattr(ottla.Producer, "renew", lambda self: (renewed.append(self), renew(self)))
    plan = plan_of(ottla_address, topic)
    for batch_id, times in ((0, 0), (1, 1), (2, 2)):
        commit_micro_batch(plan, [prepared(plan, ["a"], query=topic)], batch_id)
        assert len(renewed) == times


def test_a_first_micro_batch_without_rows_has_its_topic_made(ottla_address: str, topic_name: str) -> None:
    plan = plan_of(ottla_address, topic_name, sinkId=topic_name)
    commit_micro_batch(plan, [TaskOutput("query", 0)], 0)
    assert marked(ottla_address, topic_name) == 1


def test_a_micro_batch_without_rows_is_marked_under_a_name_alone(ottla_address: str, topic: str) -> None:
    plan = plan_of(ottla_address, topic, sinkId=topic)
    commit_micro_batch(plan, [prepared(plan, [])], 0)
    commit_micro_batch(plan, [], 1)
    bare = plan_of(ottla_address, topic)
    commit_micro_batch(bare, [prepared(bare, [], query=f"{topic}-query")], 0)
    with ottla.Admin(ottla_address) as admin:
        assert admin.group_offsets(f"ottla-sink-{topic}") == {TopicPartition(topic, 0): 1}
        assert admin.group_offsets(f"ottla-sink-{topic}-query") == {}


def test_rows_that_name_their_topics_may_come_after_micro_batches_without_any(
    ottla_address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(ottla_address, topic, sinkId=topic)
    by_rows = dataclasses.replace(plan, topic=None)
    for batch_id in range(3):
        commit_micro_batch(by_rows, [TaskOutput("query", 0)], batch_id)
    for _ in range(2):
        commit_micro_batch(by_rows, [prepared(plan, ["a"])], 3)
    with pytest.raises(CheckpointMismatch):
        commit_micro_batch(by_rows, [TaskOutput("another", 0)], 3)
    # From now on there is a place for the marker, and no topic is asked for.
    monkeypatch.setattr(commit_module, "create_staging", lambda *_: pytest.fail("a topic is made"))
    commit_micro_batch(by_rows, [TaskOutput("query", 0)], 4)
    assert marked(ottla_address, topic) == 5
    assert values_of(ottla_address, topic) == ["a"]


def test_one_write_is_all_or_nothing(ottla_address: str, topic: str) -> None:
    plan = plan_of(ottla_address, topic, maxMessageBytes="0")
    commit_write(plan, [prepared(plan, ["a", "b", "c", "d"], query=f"write-{topic}")], f"write-{topic}")
    broken = prepared(plan, ["e", "f"], query=f"write-2{topic}")
    broken.here.append(EncodedBatch(topic, 7, batch_of("x")))
    with pytest.raises(KafkaError, match="has partitions 0 to 1, not 7"):
        commit_write(plan, [broken], f"write-2{topic}")
    assert values_of(ottla_address, topic) == ["a", "b", "c", "d"]
    with ottla.Admin(ottla_address) as admin:
        # Kafka answers before all of it knows.
        eventually(
            lambda: f"ottla-staging-write-{topic}" not in admin.list_topics(), "the staging topic is gone"
        )


def test_a_write_that_fails_leaves_no_topic(
    ottla_address: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"kafka.bootstrap.servers": ottla_address, "topic": topic, "maxMessageBytes": "0"}
    writer = OttlaWriter(options, VALUE, overwrite=False)
    prepared(plan_of(ottla_address, topic, maxMessageBytes="0"), ["a", "b"], query=writer._write_id)
    # Of no task is there a message: each has failed.
    writer.abort([None, None])
    with ottla.Admin(ottla_address) as admin:
        assert f"ottla-staging-{writer._write_id}" not in admin.list_topics()
    # And where nothing was staged, nothing is said.
    writer.abort([None])
    assert not caplog.records


def test_a_commit_that_takes_long_is_warned_of(
    ottla_address: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    plan = dataclasses.replace(plan_of(ottla_address, topic), transaction_ms=1)
    commit_micro_batch(plan, [prepared(plan, ["a"], query=topic)], 0)
    assert "after kafka.transaction.timeout.ms (0.001 s) the broker aborts it" in caplog.text


@pytest.fixture
def behind_proxy(start_broker: Callable[..., Any]) -> Iterator[tuple[Proxy, Callable[[], Any]]]:
    with Proxy() as proxy:

        def start() -> Any:
            return start_broker(proxy.target_port, f"advertised.listeners={proxy.advertised}")

        yield proxy, start


def test_what_a_task_stages_keeps_its_order_when_the_broker_refuses_a_part(
    behind_proxy: tuple[Proxy, Callable[[], Any]],
) -> None:
    proxy, start = behind_proxy
    start()
    options = {"maxMessageBytes": "0", "kafka.batch.size": "1", "kafka.retry.backoff.ms": "300"}
    plan = plan_of(proxy.address, "t", **options)
    values = [f"{number}" for number in range(12)]
    # The producer has its connection.
    prepared(plan, values)
    refuse_produces(proxy, transactions.ErrorCode.NOT_ENOUGH_REPLICAS)
    offsets = [offset for _, _, offset in prepared(plan, values).staged]
    assert offsets == sorted(offsets)


@pytest.mark.parametrize("level", [2, 99], ids=["implicit", "announced"])
def test_lost_answers_and_a_broker_that_dies_in_the_middle(
    behind_proxy: tuple[Proxy, Callable[[], Any]], monkeypatch: pytest.MonkeyPatch, level: int
) -> None:
    monkeypatch.setattr(transactions, "IMPLICIT_LEVEL", level)
    proxy, start = behind_proxy
    broker = start()
    with ottla.Admin(proxy.address) as admin:
        admin.create_topic("t", 2)
    plan = plan_of(proxy.address, "t", maxMessageBytes="150", sinkId="s")
    expected: list[str] = []

    def commit(batch_id: int) -> None:
        rows = [f"{batch_id:02}-{number:02}" for number in range(12)]
        expected.extend(rows)
        commit_micro_batch(plan, [prepared(plan, rows)], batch_id)

    commit(0)
    for batch_id, api_key in enumerate((PRODUCE, TXN_OFFSET_COMMIT, END_TXN), 1):
        proxy.lose_answers(api_key)
        commit(batch_id)

    def die(*_: object) -> None:
        nonlocal broker
        broker.kill()
        broker = start()

    real = ottla.Producer.send_offsets
    monkeypatch.setattr(ottla.Producer, "send_offsets", lambda *given: (die(), real(*given)))
    commit(4)
    monkeypatch.setattr(ottla.Producer, "send_offsets", real)
    # A commit that fails for good the first time is begun anew.
    failing = iter([KafkaError("now", code=transactions.ErrorCode.REQUEST_TIMED_OUT)])

    is_done = commit_module.is_done
    monkeypatch.setattr(
        commit_module, "is_done", lambda *given, **named: (fail(failing), is_done(*given, **named))[1]
    )
    commit(5)
    assert values_of(proxy.address, "t") == expected


def fail(errors: Iterator[Exception]) -> None:
    for error in errors:
        raise error
