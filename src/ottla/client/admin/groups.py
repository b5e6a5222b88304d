"""Consumer groups from outside: which there are, who is in them, how far they have read, setting that back, deleting them.

The requests behind the methods of the same names in `client/admin/core.py`. A group's requests go to its coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from struct import error as struct_error
from struct import unpack_from
from typing import TYPE_CHECKING, Any

from ottla.client.connection import Body
from ottla.client.coordinators import ask_coordinator, ask_every_broker, find_coordinator
from ottla.client.errors import refused
from ottla.client.metadata import TopicPartition
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.admin.core import AsyncAdmin

OFFSET_COMMIT = 8
OFFSET_FETCH = 9
DESCRIBE_GROUPS = 15
LIST_GROUPS = 16
DELETE_GROUPS = 42
CONSUMER_GROUP_DESCRIBE = 69

#: The last versions that name topics instead of their ids.
_COMMIT_VERSION, _FETCH_VERSION = 9, 9


@dataclass(frozen=True, slots=True)
class GroupListing:
    group: str
    state: str
    type: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group: str
    state: str
    protocol: str
    coordinator: str
    members: tuple[GroupMember, ...]


async def list_groups(admin: AsyncAdmin) -> list[GroupListing]:
    found: dict[str, GroupListing] = {}
    body: Body = {"states_filter": [], "types_filter": []}
    for answer in (await ask_every_broker(admin.cluster, LIST_GROUPS, body, "listing groups")).values():
        for row in answer.groups:
            found[row.group_id] = GroupListing(
                str(row.group_id),
                getattr(row, "group_state", ""),
                getattr(row, "group_type", "classic"),
                row.protocol_type,
            )
    return [found[name] for name in sorted(found)]


async def describe_group(admin: AsyncAdmin, group: str) -> GroupInfo:
    answer, broker = await _ask(
        admin, group, DESCRIBE_GROUPS, {"groups": [group]}, lambda answer: [answer.groups[0]]
    )
    row = answer.groups[0]
    if row.error_code in (0, ErrorCode.GROUP_ID_NOT_FOUND) and row.group_state in ("Dead", ""):
        # It may be one of the new protocol, which is asked for in another way.
        found = await _describe_consumer_group(admin, group)
        if found is not None:
            return found
    if row.error_code or row.group_state == "Dead":
        code = int(row.error_code) or ErrorCode.GROUP_ID_NOT_FOUND
        raise refused(code, f"group {group!r}", message="there is no such group", broker=broker)
    members = tuple(
        GroupMember(
            each.member_id, getattr(each, "group_instance_id", None), each.client_id, each.client_host,
            assigned(each.member_assignment),
        )
        for each in row.members
    )  # fmt: skip
    return GroupInfo(group, row.group_state, row.protocol_data, broker, members)


async def _describe_consumer_group(admin: AsyncAdmin, group: str) -> GroupInfo | None:
    """A group of KIP-848; None if it is not there, or the broker does not know of such."""
    if not (await find_coordinator(admin.cluster, "group", group))[1].serves(CONSUMER_GROUP_DESCRIBE):
        return None
    answer, broker = await _ask(
        admin, group, CONSUMER_GROUP_DESCRIBE, {"group_ids": [group]}, lambda answer: [answer.groups[0]]
    )
    row = answer.groups[0]
    if row.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    if row.error_code:
        raise refused(int(row.error_code), f"group {group!r}", broker=broker)
    members = tuple(
        GroupMember(
            each.member_id, each.instance_id, each.client_id, each.client_host,
            tuple(sorted(
                TopicPartition(str(topic.topic_name), int(number))
                for topic in each.assignment.topic_partitions
                for number in topic.partitions
            )),
        )
        for each in row.members
    )  # fmt: skip
    return GroupInfo(group, row.group_state, row.assignor_name, broker, members)


async def group_offsets(admin: AsyncAdmin, group: str) -> dict[TopicPartition, int]:
    """All that the group has committed."""
    body: Body = {
        "group_id": group, "topics": None, "require_stable": False,
        "groups": [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": None}],
    }  # fmt: skip

    def row_of(answer: Any) -> Any:
        return answer.groups[0] if hasattr(answer, "groups") else answer

    answer, broker = await _ask(
        admin, group, OFFSET_FETCH, body, lambda answer: [row_of(answer)], _FETCH_VERSION
    )
    row = row_of(answer)
    if row.error_code:
        raise refused(int(row.error_code), f"offsets of group {group!r}", broker=broker)
    return {
        TopicPartition(str(topic.name), int(each.partition_index)): int(each.committed_offset)
        for topic in row.topics
        for each in topic.partitions
        if each.committed_offset >= 0
    }


async def set_group_offsets(admin: AsyncAdmin, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit in the group's name; a group with members refuses."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for place, offset in offsets.items():
        topics.setdefault(place.topic, []).append(
            {
                "partition_index": place.partition, "committed_offset": offset, "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
        )  # fmt: skip
    body: Body = {
        "group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "retention_time": -1, "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }  # fmt: skip
    answer, broker = await _ask(
        admin, group, OFFSET_COMMIT, body,
        lambda answer: [each for topic in answer.topics for each in topic.partitions], _COMMIT_VERSION,
    )  # fmt: skip
    for topic in answer.topics:
        for each in topic.partitions:
            if each.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                raise refused(
                    ErrorCode.NON_EMPTY_GROUP, f"setting offsets of group {group!r}",
                    message="it has active members, which would not notice; stop them first", broker=broker,
                )  # fmt: skip
            if each.error_code:
                raise refused(
                    int(each.error_code), f"setting the offset of {topic.name}-{each.partition_index}",
                    broker=broker, topic=str(topic.name), partition=int(each.partition_index),
                )  # fmt: skip


async def delete_groups(admin: AsyncAdmin, groups: Iterable[str]) -> None:
    for group in groups:
        answer, broker = await _ask(
            admin, group, DELETE_GROUPS, {"groups_names": [group]}, lambda answer: answer.results
        )
        code = int(answer.results[0].error_code)
        if code:
            message = {
                ErrorCode.NON_EMPTY_GROUP: "it has active members; stop them first",
                ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
            }.get(ErrorCode(code))
            raise refused(code, f"deleting group {group!r}", message=message, broker=broker)


async def _ask(
    admin: AsyncAdmin,
    group: str,
    api_key: int,
    body: Body,
    rows: Callable[[Any], Iterable[Any]],
    version_max: int | None = None,
) -> tuple[Any, str]:
    answer, node = await ask_coordinator(
        admin.cluster, "group", group, api_key, body, rows, version_max=version_max
    )
    return answer, node.address


def assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in a consumer's assignment: int16 version | topics of (name, partitions) …; none if it is not one."""
    found: list[TopicPartition] = []
    try:
        _version, count = unpack_from(">hi", assignment)
        at = 6
        for _ in range(min(count, len(assignment))):
            size = unpack_from(">h", assignment, at)[0]
            name = bytes(assignment[at + 2 : at + 2 + size]).decode()
            at += 2 + size
            numbers = unpack_from(">i", assignment, at)[0]
            found += [
                TopicPartition(name, number) for number in unpack_from(f">{numbers}i", assignment, at + 4)
            ]
            at += 4 + 4 * numbers
    except (struct_error, UnicodeError):
        return ()
    return tuple(sorted(found))
