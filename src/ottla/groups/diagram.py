"""The manual page of consumer groups, docs/groups.md.

It shows the states of classic groups, drawn from the coordinator's own table, the states of members of
consumer groups, and the migration between the two protocols. `python -m ottla.groups.diagram >
docs/groups.md` renders the page; a test compares the file with `render()`.
"""

from __future__ import annotations

from ottla.groups.classic_group import TRANSITIONS, State
from ottla.groups.reconciliation import STABLE, STATES, UNRELEASED, UNREVOKED

INTRODUCTION = """\
# Consumer groups

<!-- Rendered by `python -m ottla.groups.diagram`; edit `src/ottla/groups/diagram.py` instead. -->

The broker that leads a group's partition of `__consumer_offsets` is the group's coordinator. It writes
committed offsets, members and assignments to that partition, in Kafka's own record formats. When another
broker becomes the leader, it loads these records and continues. The coordinator answers a request only when
its records are written and replicated.

## States of a classic group

"""

NOTES = """
- The coordinator answers JoinGroup at the end of PreparingRebalance, and SyncGroup at the end of
  CompletingRebalance.
- The first rebalance of a group waits `group.initial.rebalance.delay.ms` for more members. Each new member
  extends the wait, up to the rebalance timeout.
- The coordinator removes a member in two cases. The member sends nothing for its session timeout. Or it does
  not join or sync within the rebalance timeout, the longest one of all members.
- A static member that does not join stays in the group until its session expires.
- A static member that returns to a stable group keeps its assignment, without a rebalance.
- Offsets expire `offsets.retention.minutes` after the group becomes Empty. If the group never had members,
  they expire that long after the commit.
"""


MEMBERS = """
## Members of a consumer group (KIP-848)

A consumer group has an epoch. The epoch grows when a member joins, leaves or changes its subscription, and
when topics change. For each new epoch the coordinator computes a target assignment. Each member moves to its
target on its own, one step per heartbeat:

```mermaid
stateDiagram-v2
    [*] --> {stable} : the member joins
    {stable} --> {unrevoked} : it must revoke partitions
    {stable} --> {unreleased} : another member still owns some of its target
    {unrevoked} --> {stable} : it has revoked them, and all of its target is free
    {unrevoked} --> {unreleased} : it has revoked them, and another member still owns some of its target
    {unreleased} --> {stable} : the other members have revoked
    {unreleased} --> {unrevoked} : the target changes
```

- A member keeps its epoch until it has revoked what it must. It has its rebalance timeout to do so. Then its
  epoch becomes the epoch of the target.
- While a partition moves between two members, nobody owns it. Other members keep consuming.
- The group is Assigning while its epoch is higher than the epoch of its target. It is Reconciling until all
  members are Stable in that epoch. Then it is Stable.

## Migration between the protocols

A group uses one protocol at a time. It can migrate while it has members; `group.consumer.migration.policy`
sets the allowed directions.

```mermaid
stateDiagram-v2
    Classic --> Consumer : a member with the consumer protocol joins
    Consumer --> Classic : the last such member leaves, expires, or returns as a classic static member
```

Upgrade (classic to consumer):

- The classic members stay and keep their assignments. Their generation becomes their epoch.
- Waiting JoinGroup and SyncGroup requests get REBALANCE_IN_PROGRESS.
- The protocol type of the group must be `consumer`, and its subscriptions and assignments must be readable.
  Otherwise the joining heartbeat gets GROUP_ID_NOT_FOUND with the reason.

Classic members in a consumer group keep using their own requests:

- Heartbeat returns REBALANCE_IN_PROGRESS when the group epoch has grown, when the member must revoke
  partitions, and when all partitions that it waits for are free.
- JoinGroup is answered at once, and no member is the leader. The owned partitions in the subscription tell
  what the member still owns; an eager member owns none.
- SyncGroup returns the current assignment.
- A classic member uses its own session timeout. It has its rebalance timeout to join when told to, and again
  to sync after the join.

Downgrade (consumer to classic):

- The generation is the epoch of the group, and a rebalance begins. There is no rebalance if a static member
  returns with the same topics while all other members are Stable.

Committed offsets stay in both directions.
"""


def render() -> str:
    """The whole page."""
    rows = [f"    [*] --> {State.EMPTY.value}"]
    rows += [
        f"    {begin.value} --> {end.value} : {event.value}" for (begin, event), end in TRANSITIONS.items()
    ]
    rows += [f"    {State.DEAD.value} --> [*]"]
    drawn = f"{INTRODUCTION}```mermaid\nstateDiagram-v2\n" + "\n".join(rows) + f"\n```\n{NOTES}"
    states = {"stable": STABLE, "unrevoked": UNREVOKED, "unreleased": UNRELEASED}
    return drawn + MEMBERS.format_map({name: STATES[number] for name, number in states.items()})


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201  (the page goes to stdout)
