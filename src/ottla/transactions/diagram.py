"""The manual page of transaction states, docs/transaction-states.md, drawn from the coordinator's own table.

`python -m ottla.transactions.diagram > docs/transaction-states.md` renders the page; a test compares the file
with `render()`.
"""

from __future__ import annotations

from ottla.transactions.formats import State
from ottla.transactions.transaction import TRANSITIONS

INTRODUCTION = """\
# How transactions work

<!-- Rendered by `python -m ottla.transactions.diagram`; edit `src/ottla/transactions/diagram.py` instead. -->

The broker that leads a transactional id's partition of `__transaction_state` is its transaction coordinator.
One record in that partition, in Kafka's own format, holds the producer id and epoch, the partitions of the
transaction, and its state. When another broker becomes the leader, it loads the record and continues. The
coordinator answers a request only when its record is written and replicated.

[transactions.md](transactions.md) shows how to use transactions.

## States of a transactional id

"""

NOTES = """
- The coordinator answers EndTxn when PrepareCommit or PrepareAbort is written and replicated. From then on
  the outcome is final.
- The coordinator then writes a marker to each partition of the transaction, and to `__consumer_offsets` for
  each group whose offsets were added. It retries until each partition has its marker. A new coordinator
  continues with this.
- Until all markers are written, the producer gets CONCURRENT_TRANSACTIONS and retries.
- If a new producer calls InitProducerId while a transaction is Ongoing, the coordinator aborts that
  transaction first.
- A transaction that runs longer than its `transaction.timeout.ms` is aborted. The coordinator checks every
  `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
- Only clients with KIP-890 (EndTxn version 5 and later) can abort an Empty or Complete transactional id.
- For clients with KIP-890, the end of every transaction raises the producer epoch. Older clients keep their
  epoch. For both, the epoch is raised when the producer is fenced or its transaction times out.
- After 32766 epochs the producer continues with another producer id.
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
    print(render(), end="")  # noqa: T201  (the page goes to stdout)
