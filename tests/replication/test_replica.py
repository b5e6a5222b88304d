from pathlib import Path

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.log.partition_log import PartitionLog
from ottla.metadata.records import Partition
from ottla.records.record import Record, encode_batch
from ottla.replication.leader_state import LeaderState
from ottla.replication.replica import Replica
from ottla.runtime.disk import SystemDisk

NOW = 1_700_000_000_000
BROKER = BrokerConfig.from_properties({"log.dirs": "/nowhere", "node.id": "1"})
DURABLE = TopicConfig.resolve({"flush.policy": "durable"}, BROKER)
PAGE_CACHE = TopicConfig.resolve({"flush.policy": "page-cache"}, BROKER)


@pytest.fixture
def opened() -> list[Replica]:
    return []


@pytest.fixture
def replica(tmp_path: Path, opened: list[Replica]) -> Replica:
    def open_log(replica: Replica) -> PartitionLog:
        opened.append(replica)
        return PartitionLog.create(
            SystemDisk(), str(tmp_path / "t-0"), replica.config, start_offset=0, now_ms=NOW, topic_id_file=b""
        )

    return alone(Replica("t", 0, 0, DURABLE, open_log))


def alone(replica: Replica) -> Replica:
    """It leads, and nobody follows."""
    replica.lead(LeaderState(1, Partition(bytes(16), 0, (1,), (1,), 1), 1, NOW), 0)
    return replica


def append(replica: Replica) -> None:
    replica.log.append(encode_batch([Record(0, NOW, None, b"v")]), replica.leader_epoch, NOW)


def test_the_log_is_made_when_it_is_first_needed_and_once(replica: Replica, opened: list[Replica]) -> None:
    assert not replica.opened and opened == []
    assert replica.log is replica.log
    assert opened == [replica]
    assert replica.opened


def test_durable_records_are_visible_once_they_are_synced(replica: Replica) -> None:
    """B5"""
    append(replica)
    append(replica)
    assert not replica.advance()
    assert replica.high_watermark == 0
    replica.log.synced(replica.log.active, 1)
    assert replica.advance()
    assert replica.high_watermark == 1
    assert not replica.advance()


def test_in_the_page_cache_records_are_visible_at_once(replica: Replica) -> None:
    replica.configure(PAGE_CACHE)
    append(replica)
    assert replica.advance()
    assert replica.high_watermark == 1


def test_the_watermark_never_moves_back(replica: Replica) -> None:
    """R3"""
    replica.configure(PAGE_CACHE)
    append(replica)
    replica.advance()
    replica.configure(DURABLE)
    assert replica.durable
    assert not replica.advance()
    assert replica.high_watermark == 1


def test_a_log_that_was_there_is_visible_as_far_as_it_is_durable(replica: Replica) -> None:
    append(replica)
    log = replica.log
    other = alone(Replica("t", 0, 0, DURABLE, lambda _replica: log))
    other.adopt(log)
    assert other.high_watermark == 0
    other.configure(PAGE_CACHE)
    other.adopt(log)
    assert other.high_watermark == 1


def test_a_logs_settings_follow_the_topics(replica: Replica) -> None:
    assert replica.log.config is DURABLE
    replica.configure(PAGE_CACHE)
    assert replica.log.config is PAGE_CACHE
