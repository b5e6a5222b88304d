"""Members of groups by hand: what a client would send, one request at a time, on a core without a shell."""

from typing import Any

FIND, JOIN, HEARTBEAT, LEAVE, SYNC, COMMIT, FETCH_OFFSETS = 10, 11, 12, 13, 14, 8, 9
#: The longest that a first rebalance waits for more members, by default.
INITIAL_DELAY_MS = 3000


class Member:
    """A member on a connection of its own; `member_id` and `generation` are what the coordinator told last."""

    def __init__(self, driver: Any, group: str, instance: str | None = None) -> None:
        self.driver = driver
        self.client = driver.connect()
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.is_leader = False
        self.members: list[str] = []

    def send_join(
        self,
        *protocols: str,
        version: int = 9,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        metadata: bytes | None = None,
    ) -> None:
        self.client.send(
            JOIN, version, group_id=self.group, session_timeout=session_ms, rebalance_timeout=rebalance_ms,
            member_id=self.member_id, group_instance_id=self.instance, protocol_type=protocol_type,
            protocols=[
                {"name": name, "metadata": subscription("t") if metadata is None else metadata}
                for name in protocols or ("range",)
            ],
            reason=None,
        )  # fmt: skip

    def joined(self) -> Any:
        """The answer to a join that has come."""
        answer = self.client.answers.pop(0)
        if answer.member_id:
            self.member_id = answer.member_id
        if not answer.error_code:
            self.generation = answer.generation_id
            self.is_leader = answer.leader == self.member_id
            self.members = [row.member_id for row in answer.members]
        return answer

    def begin_join(self, *protocols: str, **more: Any) -> None:
        """Send a join, and if it is a first one the second with the id that it brings."""
        self.send_join(*protocols, **more)
        if self.client.answers and self.client.answers[0].error_code == 79:
            self.joined()
            self.send_join(*protocols, **more)

    def send_sync(self, version: int = 5, **assignments: bytes) -> None:
        """Assignments by member id; a leader that names none gives everybody its own id."""
        if self.is_leader and not assignments:
            assignments = {name: name.encode() for name in self.members}
        self.client.send(
            SYNC, version, group_id=self.group, generation_id=self.generation, member_id=self.member_id,
            group_instance_id=self.instance, protocol_type=None, protocol_name=None,
            assignments=[{"member_id": name, "assignment": part} for name, part in assignments.items()],
        )  # fmt: skip

    def synced(self) -> Any:
        return self.client.answers.pop(0)

    def heartbeat(self, version: int = 4, **fields: Any) -> int:
        return int(
            self.client.ask(
                HEARTBEAT, version,
                **{
                    "group_id": self.group, "generation_id": self.generation, "member_id": self.member_id,
                    "group_instance_id": self.instance, **fields,
                },
            ).error_code
        )  # fmt: skip

    def leave(self, version: int = 5) -> Any:
        member = {"member_id": self.member_id, "group_instance_id": self.instance, "reason": None}
        return self.client.ask(
            LEAVE, version, group_id=self.group, member_id=self.member_id, members=[member]
        )

    def commit(
        self, offsets: dict[tuple[str, int], int], version: int = 9, metadata: str = "", **fields: Any
    ) -> dict[tuple[str, int], int]:
        """The error of each partition."""
        request = {
            "group_id": self.group, "generation_id_or_member_epoch": self.generation, "member_id": self.member_id,
            "group_instance_id": self.instance, "retention_time": -1,
            "topics": topic_rows(offsets, metadata), **fields,
        }  # fmt: skip
        answer = self.client.ask(COMMIT, version, **request)
        return {
            (topic.name, each.partition_index): int(each.error_code)
            for topic in answer.topics
            for each in topic.partitions
        }


def topic_rows(offsets: dict[tuple[str, int], int], metadata: str = "") -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 7,
                "committed_metadata": metadata,
            }
        )  # fmt: skip
    return [{"name": name, "partitions": rows} for name, rows in topics.items()]


def subscription(*topics: str) -> bytes:
    """What a consumer says of itself, version 0."""
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\0" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff"


def find(client: Any, group: str = "g") -> Any:
    """Ask for the coordinator, which makes the topic."""
    return client.ask(FIND, 4, key_type=0, coordinator_keys=[group]).coordinators[0]


def settle(*members: Member) -> None:
    """Have these members make a generation: all join, all sync."""
    for member in members:
        member.begin_join()
    if any(not member.client.answers for member in members):
        members[0].driver.advance(INITIAL_DELAY_MS + 100)
    for member in members:
        assert not member.joined().error_code
    for member in members:
        member.send_sync()
    for member in members:
        assert not member.synced().error_code


def committed(
    client: Any, group: str, *places: tuple[str, int], version: int = 7
) -> dict[tuple[str, int], int]:
    asked: dict[str, list[int]] = {}
    for topic, number in places:
        asked.setdefault(topic, []).append(number)
    topics = [{"name": name, "partition_indexes": numbers} for name, numbers in asked.items()] or None
    answer = client.ask(FETCH_OFFSETS, version, group_id=group, topics=topics, require_stable=True)
    assert not answer.error_code, answer
    return {
        (topic.name, each.partition_index): each.committed_offset
        for topic in answer.topics
        for each in topic.partitions
    }
