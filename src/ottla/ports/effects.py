"""Effects: what the core asks the world to do.

An effect is a plain tuple whose first item is one of the numbers below. A tuple is the cheapest object in
Python, and the produce path creates one per request. The core appends effects to its outbox in the order in
which they must happen. The runtime (`runtime/`) or the simulator (`testkit/sim/`) performs them after each
call into the core.

    (SEND, connection, parts)          one response. A part is bytes, or a FileSlice = (file, position, size)
    (CLOSE, connection, reason)        close after everything sent before; the reason is logged
    (PAUSE, connection)                stop reading requests from it …
    (RESUME, connection)               … until this
    (AUTHENTICATED, connection, proven)
                                       the other end has proven that it is a broker of the cluster, or has failed
    (SYNC, file, directory, target, is_bulk)
                                       make the bytes of the file durable, and the names in the directory unless it is None;
                                       then `core.sync_failed(path, error)` for each failure, and `core.synced(targets)`.
                                       A file that cannot be opened: `core.sync_refused(target, error)`, or, if
                                       descriptors or memory are short, a retry after a pause.
                                       Several syncs of one turn share a round, and the last target of a file stands
                                       for all of it. `is_bulk`: the request syncs very many files, and other syncs
                                       do not wait for this one
    (RUN, job, done)                   run `job(disk)` in a thread, then `done(result, error)`
    (WORK, task, done)                 run a task of `log/compaction.py` in the worker process, then `done(outcome, error)`
    (PROPOSE, records, done)           append to the metadata log, then `core.committed(...)` and `done(error)`

In a cluster also, for the store (`ports/store.py`) and other brokers:

    (REGISTER, registration, done)     register this broker in the store; `done(epoch, error)`
    (CLAIM, done)                      become controller if there is none; `done(epoch, error)`
    (USURP, node_id, epoch, done)      replace this controller, whose port refuses connections; `done(epoch, error)`
    (SNAPSHOT, records, done)          replace the metadata log by a snapshot; `done(error)`
    (ASK, peer, lane, key, version, body, done)
                                       one request to another broker, peer = (node id, host, port); then
                                       `done(answer, error)` with the body of the response, valid during the call, or None
                                       and the error. Requests of one lane to one peer share a connection: they are sent
                                       and answered in order. The error is REFUSED if the port refuses connections
    (WATCH, peers)                     keep an idle connection to each of {node id: (host, port)}, instead of those of the
                                       previous WATCH; `core.refused(node_id)` when it ended and the port refuses another

If performing an effect raises, no other effect is affected. Its connection is closed; or it is retried a
moment later (RETRIED: nothing has been done, and the error would look like that of a device); or its `done`
is called with the error (`refusal`).

The performer pins a file of a part or a SYNC until the effect is done, so closing or deleting the file
meanwhile does no harm.
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

#: The error of an ASK if the machine of the peer refuses connections to the port.
REFUSED: Final = "refused"

#: Heterogeneous by design; the table above is its type.
Effect: TypeAlias = tuple[Any, ...]

#: Effects that are retried after their performer raised, and the delay.
RETRIED: Final = frozenset((SYNC, RUN, WORK, WATCH))
RETRY_MS: Final = 1000

#: Of the others, those whose last item is `done`, and its arguments before the error.
_DONE: Final[dict[int, tuple[Any, ...]]] = {
    ASK: (None,), PROPOSE: (), SNAPSHOT: (), REGISTER: (0,), CLAIM: (0,), USURP: (0,),
}  # fmt: skip


def refusal(effect: Effect, error: str) -> Callable[[], None] | None:
    """The call that reports that an effect could not be performed; None if nobody waits for it. Do not call
    it at once: the caller that requested the effect has not returned yet.
    """
    first = _DONE.get(effect[0])
    return None if first is None else partial(effect[-1], *first, error)
