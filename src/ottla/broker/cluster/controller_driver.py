"""The active controller: fences brokers, elects leaders, balances leadership, and shortens the metadata log.

One broker of a cluster is the active controller. It has an epoch that the store checks with every write (R6),
so the decisions of a controller that was replaced are refused. A broker without a cluster is always active,
in epoch 0.

All decisions are pure functions in `controller/`. They read the image with the proposed records on top, so
several proposals may be under way. While the store cannot be reached nothing is decided; the changes are
caught up on later. When a proposal is refused although this broker is still the controller, it decides again
a moment later.

`broker.lifecycle` calls `take_over`, `resign`, `live_changed`, `suspect` and `resumed`. `Broker.committed`
calls `follow`.
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
    from ottla.broker.cluster.host import ControllerHost

#: Pause after a refused proposal. A broker that was replaced as controller finds out within this time.
_RETRY_MS: Final = 250
_LOG_CHECK_MS: Final = 10_000
#: The metadata log is replaced by a snapshot when it is longer than this and four times as long as the
#: snapshot.
_RECORDS_IN_LOG_MAX: Final = 10_000
_MIN_ISR: Final = "min.insync.replicas"
#: Settings that may make a leader eligible for a partition that has none.
_MAY_ELECT: Final = frozenset((_MIN_ISR, "unclean.leader.election.enable"))


class ControllerDriver:
    def __init__(self, host: ControllerHost) -> None:
        self._host = host
        self.is_active = not host.clustered
        self.epoch = 0
        #: Brokers whose ports refuse connections, with their broker epoch.
        self._suspects: dict[int, int] = {}
        self._is_snapshot_under_way = False
        self._retry = Later(self._catch_up)
        timers = host.timers
        self._balance = Periodic(
            timers,
            lambda: host.config.leader_imbalance_check_interval_seconds * 1000,
            self._balance_leaders,
        )
        self._log = Periodic(timers, lambda: _LOG_CHECK_MS, self._check_log)

    @property
    def may_decide(self) -> bool:
        return self.is_active and not self._host.lifecycle.suspended

    @property
    def failure(self) -> ErrorCode:
        """The error code for a request whose records could not be written."""
        return ErrorCode.NOT_CONTROLLER if self._host.clustered else ErrorCode.KAFKA_STORAGE_ERROR

    # --- the controller epoch -------------------------------------------------------------------------------

    def take_over(self, epoch: int, now_ms: int) -> None:
        """This broker is the active controller. Every record of earlier controllers is in the image."""
        host = self._host
        self.resign()
        self.is_active, self.epoch = True, epoch
        host.proposed = host.image
        host.timers.add(self._log, now_ms + _LOG_CHECK_MS)
        host.timers.add(self._balance, now_ms + self._balance.interval_ms())
        if not host.image.cluster_id:
            self.propose([r.Cluster(host.cluster_id)], self._decided)
        self._catch_up()

    def resign(self) -> None:
        """This broker is not the controller any more: decide nothing.

        The store answers the open proposals.
        """
        host = self._host
        if not host.clustered:
            return
        self.is_active = self._is_snapshot_under_way = False
        self._suspects.clear()
        for timed in (self._balance, self._log, self._retry):
            host.timers.cancel(timed)

    def live_changed(self, now_ms: int) -> None:
        """Brokers registered, or their registrations ended."""
        self._catch_up()

    def resumed(self, now_ms: int) -> None:
        """The store is back, and the image and the live brokers are up to date: catch up."""
        self._catch_up()

    def suspect(self, node_id: int, now_ms: int) -> None:
        """A broker's port refuses connections: fence it at once. If it is alive it registers again."""
        registration = self._host.lifecycle.live.get(node_id)
        if registration is not None and self.is_active and node_id != self._host.config.node_id:
            self._suspects[node_id] = registration.epoch
            self._catch_up()

    def follow(self, records: Sequence[r.Record | None], now_ms: int) -> None:
        """These records were committed: a changed setting may make other replicas eligible to lead."""
        if not self._host.clustered or not self.may_decide:
            return
        settings = [
            record for record in records if isinstance(record, r.Config) and record.name in _MAY_ELECT
        ]
        if not settings:
            return
        host = self._host
        image = host.proposed
        topics: set[str] = set()
        for setting in settings:
            if setting.name == _MIN_ISR:
                is_topic = setting.resource_type == TOPIC_RESOURCE
                topics.update([setting.resource_name] if is_topic else image.topics)
        names = sorted(topics.intersection(image.topics, host.image.topics))
        voided = void_eligible(image, host.image, host.config, names)
        if voided:
            self.propose(voided, self._decided)
        self._catch_up()

    # --- decisions ------------------------------------------------------------------------------------------

    def propose(self, records: Iterable[r.Record], done: Callable[[str | None], None]) -> None:
        """Propose records, in as many appends as they need.

        `done` is called once: when all are committed, or one failed.
        """
        appends = in_appends(records)
        left = len(appends)

        def one_done(error: str | None) -> None:
            nonlocal left
            # After a failed append the later ones fail too: only the first is reported.
            if left > 0:
                left = 0 if error is not None else left - 1
                if left == 0:
                    done(error)

        for append in appends:
            self._host.propose(append, one_done)

    def _catch_up(self) -> None:
        """Make the image agree with the live brokers; after an exception, again a moment later."""
        try:
            self._reconcile()
        except Exception:
            timers = self._host.timers
            timers.cancel(self._retry)
            timers.add(self._retry, self._host.now_ms + _RETRY_MS)
            raise

    def _reconcile(self) -> None:
        host = self._host
        live = host.lifecycle.live
        if not host.clustered or not self.may_decide or not live:
            # The controller itself is registered, so an empty list means that it has not arrived yet.
            return
        self._pin_settings()
        self._suspects = {
            node: epoch
            for node, epoch in self._suspects.items()
            if node in live and live[node].epoch == epoch
        }
        # Twice, for a suspect whose registration is not in the image yet: it is added, then fenced, so that
        # the broker finds out.
        for _ in range(2):
            records = reconcile(host.proposed, host.config, live, self._suspects)
            if records:
                self.propose(records, self._decided)

    def _pin_settings(self) -> None:
        """Make this broker's `min.insync.replicas` the cluster-wide default, if there is none yet.

        Elections and the commit of records must use the same value, and the brokers' files may differ.
        """
        host = self._host
        if _MIN_ISR not in host.proposed.configs.get((BROKER_RESOURCE, ""), NO_CONFIG):
            value = str(host.config.min_insync_replicas)
            self.propose([r.Config(BROKER_RESOURCE, "", _MIN_ISR, value)], self._decided)

    def _decided(self, error: str | None) -> None:
        host = self._host
        if error is not None and self.is_active:
            host.say(
                "a decision of the controller could not be written to the metadata log, and is retried: "
                f"{error}"
            )
            host.timers.cancel(self._retry)
            host.timers.add(self._retry, host.now_ms + _RETRY_MS)

    # --- periodic work --------------------------------------------------------------------------------------

    def _balance_leaders(self, now_ms: int) -> None:
        host = self._host
        if not self.may_decide or not host.config.auto_leader_rebalance_enable:
            return
        records = balance(host.proposed, host.config)
        if records:
            host.say(f"leadership of {len(records)} partitions returns to their preferred leaders")
            self.propose(records, self._decided)

    def _check_log(self, now_ms: int) -> None:
        host = self._host
        before = host.records_in_log
        if self._is_snapshot_under_way or not self.may_decide or before <= _RECORDS_IN_LOG_MAX:
            return
        records = host.image.records()
        if before <= 4 * len(records):
            return

        def done(error: str | None) -> None:
            self._is_snapshot_under_way = False
            if error is not None:
                host.say(f"no snapshot of the metadata log could be written, and it is tried again: {error}")

        self._is_snapshot_under_way = True
        host.outbox.append((SNAPSHOT, records, done))
