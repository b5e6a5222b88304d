"""Internal errors stay with the work that raised them.

Every place that runs somebody's work (a request, a timer, an answer, a callback) catches what it raises and hands it to `contain`:

- the error is logged with its traceback, each kind once a minute;
- requests that the exception interrupted, and that nobody would answer any more, have their connections closed;
- a coordinator partition that a timer or a callback left half-way is loaded again from its log.

Which requests and partitions were interrupted is read from the traceback: they are those whose frames the exception passed
through. So the paths that do not fail pay nothing.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from ottla.broker.requests.connection import Call, EnclosedConnection
from ottla.model.interrupted import interrupted_frames

if TYPE_CHECKING:
    from ottla.broker.coordinators.coordinator_partition import CoordinatorPartition
    from ottla.broker.core import Broker

#: One kind of error is logged this often: a client may provoke it with every request.
_LOG_EVERY_MS: Final = 60_000
#: Kinds remembered: a kind is an exception class and a line of code, so there are few.
_KINDS_MAX: Final = 1000
#: Attributes under which objects keep the request that they answer.
_CALLS: Final = ("call", "_call")


class Isolation:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: When each kind was logged, and how often it was not logged since.
        self._logged: dict[tuple[str, str, int], tuple[int, int]] = {}
        #: How many errors were contained since the start.
        self.count = 0
        #: For tests: which errors are contained only, and not raised again for the test to see.
        self.tolerates: Callable[[Exception], bool] = _always

    def run(self, what: str, action: Callable[..., object], *arguments: Any) -> None:
        """Call it; what it raises ends here."""
        try:
            action(*arguments)
        except Exception as error:
            self.contain(what, error)

    def contain(self, what: str, error: Exception, *, call: Call | None = None, reloads: bool = True) -> None:
        """`what` raised this. To be called in the `except` clause of whoever runs it.

        `call`: the request that it was for. `reloads`: whether coordinator partitions in the traceback may be half-way. A request's
        handler leaves them whole: what it decides is applied in one step (`CoordinatorPartition.schedule`).
        """
        self.count += 1
        try:
            self._log(what, error)
            calls, partitions = _interrupted(error)
            if call is not None:
                calls[call] = None
            for each in calls:
                if each is call or _is_unanswered(each):
                    self._broker.close(each.connection, f"internal error: {error!r}")
            if reloads:
                for partition in partitions:
                    partition.failed(f"internal error in {what}: {error!r}")
        except Exception as another:
            # Nothing is left to fall back on. One line, which cannot fail as a traceback might.
            self._broker.say(f"internal error while an error in {what} was handled: {type(another).__name__}")
        if not self.tolerates(error):
            raise error

    def _log(self, what: str, error: Exception) -> None:
        place = traceback.extract_tb(error.__traceback__, limit=-1)
        kind = (
            type(error).__name__,
            place[0].filename if place else "",
            (place[0].lineno or 0) if place else 0,
        )
        now_ms = self._broker.now_ms
        logged_ms, left_out = self._logged.get(kind, (now_ms - _LOG_EVERY_MS, 0))
        if now_ms - logged_ms < _LOG_EVERY_MS:
            self._logged[kind] = logged_ms, left_out + 1
            return
        if len(self._logged) >= _KINDS_MAX:
            self._logged.clear()
        self._logged[kind] = now_ms, 0
        more = f" ({left_out} more like it since it was logged last)" if left_out else ""
        text = "".join(traceback.format_exception(error)).rstrip()
        self._broker.say(f"internal error in {what}: {error!r}{more}\n{text}")


def _always(_error: Exception) -> bool:
    return True


def _is_unanswered(call: Call) -> bool:
    connection = call.connection
    if isinstance(connection, EnclosedConnection):
        return not connection.closed
    # One that was never in line is still in its handler.
    return not call.queued or (call.parts is None and call in connection.waiting)


def _interrupted(error: Exception) -> tuple[dict[Call, None], dict[CoordinatorPartition, None]]:
    """The requests and the coordinator partitions in whose midst it was raised."""
    from ottla.broker.coordinators.coordinator_partition import CoordinatorPartition

    calls: dict[Call, None] = {}
    partitions: dict[CoordinatorPartition, None] = {}
    for frame in interrupted_frames(error):
        for name, value in frame.f_locals.items():
            if isinstance(value, Call):
                calls[value] = None
            elif name == "self":
                for owner in (value, getattr(value, "_reply", None)):
                    for attribute in _CALLS:
                        if isinstance(call := getattr(owner, attribute, None), Call):
                            calls[call] = None
                for owner in (value, getattr(value, "timers", None), getattr(value, "_timers", None)):
                    for host in (owner, getattr(owner, "host", None), getattr(owner, "_host", None)):
                        if isinstance(host, CoordinatorPartition):
                            partitions[host] = None
    return calls, partitions
