"""What the core asks the world to do.

An effect is a plain tuple whose first item is one of the numbers below; a tuple is the cheapest thing Python
can build, and the produce path builds one a request. The core appends effects to its outbox in the order in
which they must happen; the shell (`runtime/`) or the simulator (`testing/sim/`) performs them after each call
into the core.

    (SEND, connection, parts)          one response. A part is bytes, or a FileSlice = (file, position, size)
    (CLOSE, connection, reason)        close after what was sent before; the reason is for people
    (PAUSE, connection)                stop reading requests from it …
    (RESUME, connection)               … until this
    (AUTHENTICATED, connection, proven)
                                       the other end has proven that it is a broker of the cluster, or has failed to
    (SYNC, file, directory, target, is_bulk)
                                       make the file's bytes, and the directory's names unless it is None, durable;
                                       then `core.sync_failed(path, error)` for each that failed, and `core.synced(targets)`.
                                       A file that cannot be opened for it: `core.sync_refused(target, error)`, or, if
                                       descriptors or memory are short, the same again after a pause.
                                       Several in one turn share a round, and the last target of a file stands for
                                       all of it. `is_bulk`: the request asks for very many files, and the syncs of others
                                       need not wait for this one
    (RUN, job, done)                   run `job(disk)` where it may take its time, then `done(result, error)`
    (WORK, task, done)                 let the worker process do a task of `log/compaction.py`, then `done(outcome, error)`
    (PROPOSE, records, done)           append these to the metadata log, then `core.committed(...)` and `done(error)`

In a cluster also, for the store (`ports/store.py`) and other brokers:

    (REGISTER, registration, done)     say in the store that this broker lives; `done(epoch, error)`
    (CLAIM, done)                      become controller if nobody is; `done(epoch, error)`
    (USURP, node_id, epoch, done)      take control from this one, whose port refuses; `done(epoch, error)`
    (SNAPSHOT, records, done)          replace the metadata log by what it amounts to; `done(error)`
    (ASK, peer, lane, key, version, body, done)
                                       one request to another broker, peer = (node id, host, port); then `done(answer, error)`
                                       with the body of the answer, valid during the call, or None and why not. Requests of
                                       one lane to one peer share a connection: they leave and are answered in order.
                                       REFUSED is the error if nobody listens there
    (WATCH, peers)                     keep an idle connection to each of {node id: (host, port)}, instead of those of the WATCH
                                       before; `core.refused(node_id)` once it has ended and the port refuses another

An effect that cannot be performed, because its performer raises, harms no other. Its connection is closed; or
it is performed again a moment later (RETRIED: nothing has been done, and its error would be taken for that of
a device); or its `done` is called with the error (`refusal`).

A file in a part or a SYNC is pinned by the performer from the moment it takes the effect until it is done, so
that closing or deleting it meanwhile does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

SEND: Final = 0
CLOSE: Final = 1
PAUSE: Final = 2
RESUME: Final = 3
SYNC: Final = 4
RUN: Final = 5
PROPOSE: Final = 6
WORK: Final = 7
REGISTER: Final = 8
CLAIM: Final = 9
USURP: Final = 10
SNAPSHOT: Final = 11
ASK: Final = 12
WATCH: Final = 13
AUTHENTICATED: Final = 14

#: The error of an ASK whose peer is not there: its machine answers that nobody listens on the port.
REFUSED: Final = "refused"

#: Heterogeneous by design; the table above is its type.
Effect: TypeAlias = tuple[Any, ...]

#: What is performed again when its performer has raised, and after how long.
RETRIED: Final = frozenset((SYNC, RUN, WORK, WATCH))
RETRY_MS: Final = 1000

#: Of the others those whose last item is `done`, and what it is called with before the error.
_DONE: Final[dict[int, tuple[Any, ...]]] = {
    ASK: (None,), PROPOSE: (), SNAPSHOT: (), REGISTER: (0,), CLAIM: (0,), USURP: (0,),
}  # fmt: skip


def refusal(effect: Effect, error: str) -> Callable[[], None] | None:
    """How to report that an effect could not be performed; None if nobody waits for it. Not to be called at
    once: whoever asked for the effect is not done yet.
    """
    first = _DONE.get(effect[0])
    return None if first is None else partial(effect[-1], *first, error)
