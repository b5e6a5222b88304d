"""The manual page of a classic group's states, drawn from the table that the coordinator goes by.

`python -m ottla.groups.diagram > docs/groups.md` renews it; a test holds the file equal to `render()`.
"""

from __future__ import annotations

from ottla.groups.group import TRANSITIONS, State

INTRODUCTION = """\
# Consumer groups

<!-- Rendered by `python -m ottla.groups.diagram`; edit `src/ottla/groups/group.py` instead. -->

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


def render() -> str:
    """The whole page."""
    rows = [f"    [*] --> {State.EMPTY.value}"]
    rows += [
        f"    {begin.value} --> {end.value} : {event.value}" for (begin, event), end in TRANSITIONS.items()
    ]
    rows += [f"    {State.DEAD.value} --> [*]"]
    return f"{INTRODUCTION}```mermaid\nstateDiagram-v2\n" + "\n".join(rows) + f"\n```\n{NOTES}"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201  (printing it is what it is for)
