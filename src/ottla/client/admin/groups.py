"""Group requests: list, describe and delete groups, and remove members.

The functions implement the methods of the same names in `client/admin/core.py`. Requests about a group go to
its coordinator. Committed offsets are in `group_offsets.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from struct import error as struct_error
from struct import unpack_from
from typing import TYPE_CHECKING, Any

from ottla.client.admin.requests import raise_all
from ottla.client.connection import Body
from ottla.client.coordinators import MOVED, ask_coordinator, ask_every_broker, find_coordinator
from ottla.client.errors import KafkaError, refused
from ottla.client.metadata import TopicPartition, known_code
from ottla.model.api_key import ApiKey
from ottla.model.errors import ErrorCode

if TYPE_CHECKING:
    from ottla.client.cluster import Cluster


@dataclass(frozen=True, slots=True)
class GroupListing:
    group: str
    state: str
    type: str
    protocol_type: str

    def __str__(self) -> str:
        return f"{self.group}: {self.state or 'state unknown'}, {self.type}"


@dataclass(frozen=True, slots=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]

    def __str__(self) -> str:
        name = f"{self.instance_id} ({self.member_id})" if self.instance_id else self.member_id
        return f"{name} at {self.host}: {', '.join(map(str, self.partitions)) or 'nothing'}"


@dataclass(frozen=True, slots=True)
class GroupInfo:
    group: str
    state: str
    #: The name of the assignor.
    protocol: str
    coordinator: str
    members: tuple[GroupMember, ...]
    #: "classic", or "consumer" (KIP-848).
    type: str = "classic"

    def __str__(self) -> str:
        how = f", {self.protocol}" if self.protocol else ""
        head = (
            f"group {self.group}: {self.state}, {self.type}{how}, {len(self.members)} member(s), "
            f"coordinator {self.coordinator}"
        )
        return "\n".join([head, *(f"  {member}" for member in self.members)])


async def list_groups(
    cluster: Cluster, *, states: Collection[str] = (), types: Collection[str] = ()
) -> list[GroupListing]:
    found: dict[str, GroupListing] = {}
    body: Body = {"states_filter": list(states), "types_filter": list(types)}
    # A broker that is too old for a filter would list everything.
    needed = 5 if types else 4 if states else 0
    answers = await ask_every_broker(cluster, ApiKey.LIST_GROUPS, body, "listing groups", version_min=needed)
    for answer in answers.values():
        for row in answer.groups:
            found[row.group_id] = GroupListing(
                str(row.group_id),
                getattr(row, "group_state", ""),
                getattr(row, "group_type", "classic"),
                row.protocol_type,
            )
    return [found[name] for name in sorted(found)]


async def describe_groups(cluster: Cluster, groups: Iterable[str]) -> dict[str, GroupInfo]:
    found: dict[str, GroupInfo] = {}
    errors: dict[str, KafkaError] = {}
    for group in groups:
        try:
            found[group] = await describe_group(cluster, group)
        except KafkaError as error:
            errors[group] = error
    raise_all(errors, len(found) + len(errors), "describing groups")
    return found


async def describe_group(cluster: Cluster, group: str) -> GroupInfo:
    answer, broker = await ask_group(
        cluster, group, ApiKey.DESCRIBE_GROUPS, {"groups": [group]}, lambda answer: [answer.groups[0]]
    )
    row = answer.groups[0]
    if row.error_code in (0, ErrorCode.GROUP_ID_NOT_FOUND) and row.group_state in ("Dead", ""):
        # It may be a group of the consumer protocol, which needs another request.
        found = await _describe_consumer_group(cluster, group)
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


async def _describe_consumer_group(cluster: Cluster, group: str) -> GroupInfo | None:
    """Describe a group of the consumer protocol (KIP-848). None if it does not exist or the broker lacks the
    API.
    """
    if not (await find_coordinator(cluster, "group", group))[1].serves(ApiKey.CONSUMER_GROUP_DESCRIBE):
        return None
    answer, broker = await ask_group(
        cluster,
        group,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        {"group_ids": [group]},
        lambda answer: [answer.groups[0]],
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
    return GroupInfo(group, row.group_state, row.assignor_name, broker, members, "consumer")


async def remove_members(cluster: Cluster, group: str, members: Iterable[str] | None, *, reason: str) -> None:
    """Remove members by member id or group instance id. Members that still run join again."""
    known = (await describe_group(cluster, group)).members
    names = {each.member_id: each for each in known} | {
        each.instance_id: each for each in known if each.instance_id
    }
    leaving: dict[str, GroupMember] = {}
    errors: dict[str, KafkaError] = {}
    for name in [each.member_id for each in known] if members is None else members:
        if name in names:
            leaving[name] = names[name]
        else:
            errors[name] = refused(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"removing {name!r} from group {group!r}",
                message="there is no such member",
            )
    if leaving:
        body: Body = {
            "group_id": group,
            "members": [
                {
                    "member_id": "" if each.instance_id else each.member_id, "group_instance_id": each.instance_id,
                    "reason": reason or None,
                }
                for each in leaving.values()
            ],
        }  # fmt: skip
        answer, broker = await ask_group(cluster, group, ApiKey.LEAVE_GROUP, body, lambda answer: [answer])
        if answer.error_code:
            raise refused(int(answer.error_code), f"removing members of group {group!r}", broker=broker)
        for name, row in zip(leaving, getattr(answer, "members", ()), strict=False):
            if row.error_code:
                errors[name] = refused(
                    int(row.error_code), f"removing {name!r} from group {group!r}", broker=broker
                )
    raise_all(errors, len(leaving) + len(errors), f"removing members of group {group!r}")


async def delete_groups(cluster: Cluster, groups: Iterable[str]) -> None:
    errors: dict[str, KafkaError] = {}
    asked = list(groups)
    for group in asked:
        answer, broker = await ask_group(
            cluster, group, ApiKey.DELETE_GROUPS, {"groups_names": [group]}, lambda answer: answer.results
        )
        code = int(answer.results[0].error_code)
        if code:
            message = {
                ErrorCode.NON_EMPTY_GROUP: "it has active members; stop them first",
                ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
            }.get(known_code(code))
            errors[group] = refused(code, f"deleting group {group!r}", message=message, broker=broker)
    raise_all(errors, len(asked), "deleting groups")


async def ask_group(
    cluster: Cluster,
    group: str,
    api_key: int,
    body: Body,
    rows: Callable[[Any], Iterable[Any]],
    version_max: int | None = None,
    passing: frozenset[ErrorCode] = MOVED,
) -> tuple[Any, str]:
    """The response of a group's coordinator, and its address."""
    answer, node = await ask_coordinator(
        cluster, "group", group, api_key, body, rows, version_max=version_max, passing=passing
    )
    return answer, node.address


def assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of a consumer's assignment: int16 version | topics of (name, partitions) …; empty if
    malformed.
    """
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
