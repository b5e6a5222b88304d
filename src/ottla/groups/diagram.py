"""The manual page of groups: the states of classic ones, drawn from the table that the coordinator goes by; those of the members of
consumer groups; and how one becomes the other.

`python -m ottla.groups.diagram > docs/groups.md` renews it; a test holds the file equal to `render()`.
"""

from __future__ import annotations

from ottla.groups.classic_group import TRANSITIONS, State
from ottla.groups.reconciliation import STABLE, STATES, UNRELEASED, UNREVOKED

INTRODUCTION = """\
# Consumer groups

<!-- Rendered by `python -m ottla.groups.diagram`; edit `src/ottla/groups/classic_group.py` instead. -->

A group belongs to a partition of `__consumer_offsets`, and the broker that leads this partition coordinates it. What it has
committed, and the members and assignments of its last generation, are records in that partition, in Kafka's own formats;
another broker that becomes its leader reads them and goes on. Nothing is answered before it is written and replicated.

## The states of a classic group

"""

NOTES = """
- The answer to a join waits in PreparingRebalance, that to a sync in CompletingRebalance.
- A group's first rebalance waits `group.initial.rebalance.delay.ms` for more members, and again while they come.
- A member is lost when nothing was heard of it for its session time-out, or when it does not join, or joins and does not sync,
  within the longest rebalance time-out of the members. A static member that does not join keeps its place until its session ends.
- A static member that comes back in a stable group takes the place that it had, without a rebalance.
- `offsets.retention.minutes` after the group became Empty, or after the commit if it never had members, offsets are forgotten.
"""


MEMBERS = """
## The members of a consumer group (KIP-848)

A consumer group has an epoch, which grows when a member comes, goes or wants something else, or when topics change; then the broker
computes a target assignment. Each member goes from what it has to its target by itself, a step a heartbeat:

```mermaid
stateDiagram-v2
    [*] --> {stable} : it joins
    {stable} --> {unrevoked} : its target lacks something that it has
    {stable} --> {unreleased} : its target has something that another has
    {unrevoked} --> {stable} : it has given that up, and all of its target is free
    {unrevoked} --> {unreleased} : it has given that up, and another has some of its target
    {unreleased} --> {stable} : the others have given up
    {unreleased} --> {unrevoked} : the target changes
```

- It keeps its epoch until it has given up what it was told to, for which it has its rebalance time-out; then it has the target's.
- Between two members a partition has no owner. Nobody else stops reading.
- The group is Assigning while its epoch is ahead of its target, Reconciling until all members are stable in it, then Stable.

## From one protocol to the other

A group is of one kind at a time, and changes while it has members; `group.consumer.migration.policy` says in which directions.

```mermaid
stateDiagram-v2
    Classic --> Consumer : a member of the consumer protocol joins
    Consumer --> Classic : the last one leaves, is lost, or comes back as a classic static member
```

- Up: the classic members stay, with what they have; their generation is their epoch. Who waits for a join or a sync is told
  REBALANCE_IN_PROGRESS. The group must be one of consumers (protocol type `consumer`) whose subscriptions and assignments can be read;
  otherwise the heartbeat that would join hears GROUP_ID_NOT_FOUND with the reason.
- In a consumer group, classic members go on with their own requests. Heartbeat tells them REBALANCE_IN_PROGRESS when the epoch has
  grown, when they have to give something up, and when all that they wait for is free. A join is answered at once, and nobody leads; the
  owned partitions in its subscription say what the member still has: nothing if it is eager. SyncGroup tells what it has now.
- A classic member has its own session time-out, and its rebalance time-out from being told to join, and from joining to syncing.
- Down: the generation is the group's epoch, and a rebalance begins; not for a static member that comes back with the same topics
  while all others are stable. Committed offsets stay in both directions.
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
    print(render(), end="")  # noqa: T201  (printing it is what it is for)
