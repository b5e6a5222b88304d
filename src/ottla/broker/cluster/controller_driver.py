"""The acting controller: lets the image follow those who live, and looks after balance and the length of the log.

In a cluster one broker at a time controls, under an epoch that the store checks with every write (R6), so a controller that was
replaced and does not know it yet decides in vain. A broker on its own always controls, in epoch 0.

`broker.lifecycle` calls `take_over`, `resign`, `live_changed`, `suspect` and, when the store is back after a pause, `resumed`;
`core.committed` calls `follow`. All decisions are pure functions in `controller/` of the image with what is proposed on top, so
several may be under way. While the store is out of reach nothing is decided: what changed meanwhile is caught up on. When proposals are
refused though control is not lost, the same is done a moment later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from ottla.controller.broker_changes import reconcile, void_eligible
from ottla.controller.preferred_election import balance
from ottla.metadata import records as r
from ottla.metadata.appends import in_appends
from ottla.metadata.image import BROKER_RESOURCE, NO_CONFIG, TOPIC_RESOURCE
from ottla.model.errors import ErrorCode
from ottla.model.timer_wheel import Later, Periodic
from ottla.ports.effects import SNAPSHOT

if TYPE_CHECKING:
    from ottla.broker.core import Broker

#: After proposals were refused. Losing control is told within that time, so it is seldom tried in vain.
_RETRY_MS: Final = 250
_LOG_LOOK_MS: Final = 10_000
#: A log is replaced by what it amounts to when it is longer than this and than four times that.
_RECORDS_IN_LOG_MAX: Final = 10_000
_MIN_ISR: Final = "min.insync.replicas"
#: Settings that may give a leader to a partition that has none.
_MAY_ELECT: Final = frozenset((_MIN_ISR, "unclean.leader.election.enable"))


class ControllerDriver:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.is_active = not broker.clustered
        self.epoch = 0
        #: Brokers whose ports refuse, with the epoch of the life in which they did.
        self._suspects: dict[int, int] = {}
        self._is_snapshot_under_way = False
        self._again = Later(self._catch_up)
        timers = broker.timers
        self._balance = Periodic(
            timers,
            lambda: broker.config.leader_imbalance_check_interval_seconds * 1000,
            self._balance_leaders,
        )
        self._log = Periodic(timers, lambda: _LOG_LOOK_MS, self._look_at_log)

    @property
    def may_decide(self) -> bool:
        return self.is_active and not self._broker.lifecycle.suspended

    @property
    def failure(self) -> ErrorCode:
        """What a request hears whose records could not be written."""
        return ErrorCode.NOT_CONTROLLER if self._broker.clustered else ErrorCode.KAFKA_STORAGE_ERROR

    # --- control comes and goes -------------------------------------------------------------------------------

    def take_over(self, epoch: int, now_ms: int) -> None:
        """This broker controls from now on; every record before it is in the image."""
        broker = self._broker
        self.resign()
        self.is_active, self.epoch = True, epoch
        broker.proposed = broker.image
        broker.timers.add(self._log, now_ms + _LOG_LOOK_MS)
        broker.timers.add(self._balance, now_ms + self._balance.interval_ms())
        if not broker.image.cluster_id:
            self.propose([r.Cluster(broker.cluster_id)], self._decided)
        self._catch_up()

    def resign(self) -> None:
        """Somebody else controls, or nobody: decide nothing more. What was proposed is answered by the store."""
        broker = self._broker
        if not broker.clustered:
            return
        self.is_active = self._is_snapshot_under_way = False
        self._suspects.clear()
        for timed in (self._balance, self._log, self._again):
            broker.timers.cancel(timed)

    def live_changed(self, now_ms: int) -> None:
        """Registrations came or went."""
        self._catch_up()

    def resumed(self, now_ms: int) -> None:
        """The store is back, and everything missed was told: decide what was left."""
        self._catch_up()

    def suspect(self, node_id: int, now_ms: int) -> None:
        """A broker's port refuses: it is fenced at once, and must register anew if it lives."""
        registration = self._broker.lifecycle.live.get(node_id)
        if registration is not None and self.is_active and node_id != self._broker.config.node_id:
            self._suspects[node_id] = registration.epoch
            self._catch_up()

    def follow(self, records: Sequence[r.Record | None], now_ms: int) -> None:
        """These records were committed: settings among them may change who can lead."""
        if not self._broker.clustered or not self.may_decide:
            return
        settings = [
            record for record in records if isinstance(record, r.Config) and record.name in _MAY_ELECT
        ]
        if not settings:
            return
        broker = self._broker
        image = broker.proposed
        topics: set[str] = set()
        for setting in settings:
            if setting.name == _MIN_ISR:
                is_topic = setting.resource_type == TOPIC_RESOURCE
                topics.update([setting.resource_name] if is_topic else image.topics)
        names = sorted(topics.intersection(image.topics, broker.image.topics))
        voided = void_eligible(image, broker.image, broker.config, names)
        if voided:
            self.propose(voided, self._decided)
        self._catch_up()

    # --- deciding -----------------------------------------------------------------------------------------------

    def propose(self, records: Iterable[r.Record], done: Callable[[str | None], None]) -> None:
        """Propose changes of partitions and brokers, in as many appends as they take; `done` once, when all are in or one failed."""
        appends = in_appends(records)
        left = len(appends)

        def one_done(error: str | None) -> None:
            nonlocal left
            # Those behind one that failed fail too; the first tells.
            if left > 0:
                left = 0 if error is not None else left - 1
                if left == 0:
                    done(error)

        for append in appends:
            self._broker.propose(append, one_done)

    def _catch_up(self) -> None:
        """Make the image agree with the live brokers; if that fails half-way, once more in a moment."""
        try:
            self._reconcile()
        except Exception:
            timers = self._broker.timers
            timers.cancel(self._again)
            timers.add(self._again, self._broker.now_ms + _RETRY_MS)
            raise

    def _reconcile(self) -> None:
        broker = self._broker
        live = broker.lifecycle.live
        if not broker.clustered or not self.may_decide or not live:
            # A controller is registered: without anybody it has not been told yet.
            return
        self._pin_settings()
        self._suspects = {
            node: epoch
            for node, epoch in self._suspects.items()
            if node in live and live[node].epoch == epoch
        }
        # Twice if a suspect's life is not in the image yet: it begins and ends, so that the broker hears of its end.
        for _ in range(2):
            records = reconcile(broker.proposed, broker.config, live, self._suspects)
            if records:
                self.propose(records, self._decided)

    def _pin_settings(self) -> None:
        """Who may lead after a failure, and what leaders count, rest on the same `min.insync.replicas`. Brokers' files may
        differ, so what the first controller's says becomes everybody's, until somebody sets another."""
        broker = self._broker
        if _MIN_ISR not in broker.proposed.configs.get((BROKER_RESOURCE, ""), NO_CONFIG):
            value = str(broker.config.min_insync_replicas)
            self.propose([r.Config(BROKER_RESOURCE, "", _MIN_ISR, value)], self._decided)

    def _decided(self, error: str | None) -> None:
        broker = self._broker
        if error is not None and self.is_active:
            broker.say(f"the controller's change was refused: {error}")
            broker.timers.cancel(self._again)
            broker.timers.add(self._again, broker.now_ms + _RETRY_MS)

    # --- from time to time --------------------------------------------------------------------------------------

    def _balance_leaders(self, now_ms: int) -> None:
        broker = self._broker
        if not self.may_decide or not broker.config.auto_leader_rebalance_enable:
            return
        records = balance(broker.proposed, broker.config)
        if records:
            broker.say(f"{len(records)} partitions get their preferred leader back")
            self.propose(records, self._decided)

    def _look_at_log(self, now_ms: int) -> None:
        broker = self._broker
        before = broker.records_in_log
        if self._is_snapshot_under_way or not self.may_decide or before <= _RECORDS_IN_LOG_MAX:
            return
        records = broker.image.records()
        if before <= 4 * len(records):
            return

        def done(error: str | None) -> None:
            self._is_snapshot_under_way = False
            if error is not None:
                broker.say(f"the metadata log could not be shortened: {error}")

        self._is_snapshot_under_way = True
        broker.outbox.append((SNAPSHOT, records, done))
