"""The high watermark has one owner: `Replica`. It moves backwards only by truncation."""

import ast
from pathlib import Path

import pytest

import ottla
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.log.partition_log import PartitionLog
from ottla.metadata.records import Partition
from ottla.records.record import Record, encode_batch
from ottla.replication.leader_state import LeaderState
from ottla.replication.replica import Replica
from ottla.runtime.disk import SystemDisk

NOW = 1_700_000_000_000
CONFIG = TopicConfig.resolve({}, BrokerConfig.from_properties({"log.dirs": "/nowhere", "node.id": "1"}))

SOURCE = Path(ottla.__file__).parent
#: The methods of `Replica` that may assign it.
WRITERS = {
    "__init__", "adopt", "restore", "advance", "advance_alone", "learn", "truncate", "restart_at",
}  # fmt: skip


def assignments(tree: ast.AST) -> list[ast.AST]:
    """Where an attribute `high_watermark` is stored to, by an assignment or by setattr."""
    return [
        node
        for node in ast.walk(tree)
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "high_watermark"
            and isinstance(node.ctx, ast.Store | ast.Del)
        )
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name | ast.Attribute)
            and (node.func.id if isinstance(node.func, ast.Name) else node.func.attr)
            in ("setattr", "__setattr__")
            and any(isinstance(each, ast.Constant) and each.value == "high_watermark" for each in node.args)
        )
    ]


def test_only_replica_py_assigns_the_high_watermark() -> None:
    found = [
        str(path.relative_to(SOURCE))
        for path in sorted(SOURCE.rglob("*.py"))
        # A consumer's partition has a high watermark of its own: the last one that it was sent.
        if path.relative_to(SOURCE).parts[0] != "client"
        and assignments(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == ["replication/replica.py"]


def test_these_methods_of_replica_assign_it() -> None:
    tree = ast.parse((SOURCE / "replication" / "replica.py").read_text(encoding="utf-8"))
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert {method.name for method in methods if assignments(method)} == WRITERS
    assert sum(len(assignments(method)) for method in methods) == len(assignments(tree))


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    """A follower whose log has the offsets 0 to 4."""
    replica = Replica("t", 0, 0, CONFIG, lambda _replica: created(tmp_path))
    for _ in range(5):
        replica.log.append(encode_batch([Record(0, NOW, None, b"v")]), 0, NOW)
    return replica


def created(path: Path) -> PartitionLog:
    return PartitionLog.create(
        SystemDisk(), str(path / "t-0"), CONFIG, start_offset=0, now_ms=NOW, topic_id_file=b""
    )


def test_a_checkpoint_is_restored_before_the_log_is_opened(replica: Replica) -> None:
    other = Replica("t", 0, 0, CONFIG, lambda _replica: replica.log)
    other.restore(7)
    assert other.log.next_offset == 5 == other.high_watermark, "limited to what the log has"
    with pytest.raises(AssertionError, match="the log is open"):
        other.restore(3)


def test_a_leader_that_is_alone_does_not_move_it_backwards(replica: Replica) -> None:
    replica.advance_alone(3)
    with pytest.raises(AssertionError, match="backwards only by truncation"):
        replica.advance_alone(2)


def test_a_follower_learns_it_as_far_as_its_log_reaches(replica: Replica) -> None:
    assert replica.learn(3) and replica.high_watermark == 3
    assert not replica.learn(2) and replica.high_watermark == 3, "not backwards"
    assert replica.learn(9) and replica.high_watermark == 5


def test_a_leader_neither_learns_it_nor_truncates(replica: Replica) -> None:
    replica.lead(LeaderState(1, Partition(bytes(16), 0, (1,), (1,), 1), 1, NOW), 0)
    with pytest.raises(AssertionError, match="itself"):
        replica.learn(2)
    with pytest.raises(AssertionError, match="does not truncate"):
        replica.truncate(2, NOW)
    with pytest.raises(AssertionError, match="does not truncate"):
        replica.restart_at(2, NOW)


def test_truncation_takes_it_along(replica: Replica) -> None:
    replica.learn(4)
    replica.truncate(4, NOW)
    assert replica.high_watermark == 4 == replica.log.next_offset
    replica.truncate(2, NOW)
    assert replica.high_watermark == 2 == replica.log.next_offset
    replica.restart_at(9, NOW)
    assert replica.high_watermark == 9 == replica.log.next_offset
