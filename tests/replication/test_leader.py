from pathlib import Path

import pytest

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.log.partition_log import PartitionLog
from ottla.records.record import Record, encode_batch
from ottla.replication.leader import Leader
from ottla.runtime.disk import SystemDisk

NOW = 1_700_000_000_000
BROKER = BrokerConfig.from_properties({"log.dirs": "/nowhere", "node.id": "1"})
DURABLE = TopicConfig.resolve({"flush.policy": "durable"}, BROKER)
PAGE_CACHE = TopicConfig.resolve({"flush.policy": "page-cache"}, BROKER)


@pytest.fixture
def opened() -> list[Leader]:
    return []


@pytest.fixture
def leader(tmp_path: Path, opened: list[Leader]) -> Leader:
    def open_log(leader: Leader) -> PartitionLog:
        opened.append(leader)
        return PartitionLog.create(
            SystemDisk(), str(tmp_path / "t-0"), leader.config, start_offset=0, now_ms=NOW, topic_id_file=b""
        )

    return Leader("t", 0, 0, DURABLE, open_log)


def append(leader: Leader) -> None:
    leader.log.append(encode_batch([Record(0, NOW, None, b"v")]), leader.leader_epoch, NOW)


def test_the_log_is_made_when_it_is_first_needed_and_once(leader: Leader, opened: list[Leader]) -> None:
    assert not leader.opened and opened == []
    assert leader.log is leader.log
    assert opened == [leader]
    assert leader.opened


def test_durable_records_are_visible_once_they_are_synced(leader: Leader) -> None:
    """B5"""
    append(leader)
    append(leader)
    assert not leader.advance()
    assert leader.high_watermark == 0
    leader.log.synced(leader.log.active, 1)
    assert leader.advance()
    assert leader.high_watermark == 1
    assert not leader.advance()


def test_in_the_page_cache_records_are_visible_at_once(leader: Leader) -> None:
    leader.configure(PAGE_CACHE)
    append(leader)
    assert leader.advance()
    assert leader.high_watermark == 1


def test_the_watermark_never_moves_back(leader: Leader) -> None:
    """R3"""
    leader.configure(PAGE_CACHE)
    append(leader)
    leader.advance()
    leader.configure(DURABLE)
    assert leader.durable
    assert not leader.advance()
    assert leader.high_watermark == 1


def test_a_log_that_was_there_is_visible_as_far_as_it_is_durable(leader: Leader) -> None:
    append(leader)
    log = leader.log
    other = Leader("t", 0, 0, DURABLE, lambda _leader: log)
    other.adopt(log)
    assert other.high_watermark == 0
    other.configure(PAGE_CACHE)
    other.adopt(log)
    assert other.high_watermark == 1


def test_a_logs_settings_follow_the_topics(leader: Leader) -> None:
    assert leader.log.config is DURABLE
    leader.configure(PAGE_CACHE)
    assert leader.log.config is PAGE_CACHE
