"""The manual page of a transactional id's states, drawn from the table that the coordinator goes by.

`python -m ottla.transactions.diagram > docs/transaction-states.md` renews it; a test holds the file equal to `render()`.
"""

from __future__ import annotations

from ottla.transactions.formats import State
from ottla.transactions.transaction import TRANSITIONS

INTRODUCTION = """\
# How transactions work

<!-- Rendered by `python -m ottla.transactions.diagram`; edit `src/ottla/transactions/transaction.py` instead. -->

A transactional id belongs to a partition of `__transaction_state`, and the broker that leads this partition coordinates it. Its
producer's id and epoch, the partitions of its transaction and how far that has come are one record in that partition, in Kafka's
own format; another broker that becomes its leader reads it and goes on. Nothing is answered before it is written and replicated.
How to use them is in [transactions.md](transactions.md).

## The states of a transactional id

"""

NOTES = """
- The answer to EndTxn leaves when PrepareCommit or PrepareAbort is written and replicated: from then on the end is final. Each
  partition, and each group whose offsets were added, then gets its marker from its leader, as often as it takes; whoever
  coordinates next goes on with that. Meanwhile the producer hears CONCURRENT_TRANSACTIONS and asks again.
- A producer that comes while a transaction of its predecessor is going on has that aborted first.
- A transaction that takes longer than its `transaction.timeout.ms` is aborted; every
  `transaction.abort.timed.out.transaction.cleanup.interval.ms` the coordinator looks for such.
- Empty and complete ones may be aborted by clients of KIP-890 (EndTxn from version 5) alone. Their epoch is raised at the end of every
  transaction; older clients keep theirs. Either has its epoch raised when it is fenced or takes too long. When 32766 epochs are
  used up, it goes on with another producer id.
- A partition whose topic was deleted needs no marker.
"""


def render() -> str:
    """The whole page."""
    rows = [f"    [*] --> {State.EMPTY.title}"]
    rows += [
        f"    {begin.title} --> {end.title} : {event.value}" for (begin, event), end in TRANSITIONS.items()
    ]
    rows += [f"    {State.DEAD.title} --> [*]"]
    return f"{INTRODUCTION}```mermaid\nstateDiagram-v2\n" + "\n".join(rows) + f"\n```\n{NOTES}"


if __name__ == "__main__":
    print(render(), end="")  # noqa: T201  (printing it is what it is for)
