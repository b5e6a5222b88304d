"""The lifecycle of this broker: registration, fencing, the controller claim, watched peers (R5, R6).

A broker serves (leads and follows) while the image has its record, unfenced, with the broker epoch of its
current registration. So after a restart it leads nothing until the controller has decided. When a broker
finds itself fenced, or its ZooKeeper session expires, it stops serving and registers again.

A broker that finds no controller claims to be the controller. A controller whose port refuses connections is
dead, not slow, and is replaced at once. The controller fences other brokers for the same reason
(`ControllerDriver.suspect`). Epochs make a mistake in this harmless.

A broker without a cluster always serves and is its own controller. Of this class it uses only the attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from ottla.broker.cluster.controlled_shutdown import ControlledShutdown
from ottla.broker.cluster.registration_check import RegistrationCheck
from ottla.broker.cluster.store_outage import StoreOutage
from ottla.config.topic import TopicConfig
from ottla.controller.broker_epoch import TOKEN_BYTES, proposed_epoch
from ottla.log.names import id_text
from ottla.model.timer_wheel import Later
from ottla.ports.effects import CLAIM, REGISTER, USURP, WATCH
from ottla.ports.store import Registration

if TYPE_CHECKING:
    from ottla.broker.cluster.host import ClusterHost

#: Pause before a failed registration or claim is repeated.
_RETRY_MS: Final = 300
_NO_CONTROLLER: Final = -1
#: How long Metadata responses do not name a broker whose connection broke, unless the controller decides
#: earlier.
UNREACHABLE_MS: Final = 500
#: The broker epoch of a broker without a cluster.
_STANDALONE_EPOCH: Final = 1


class BrokerLifecycle:
    def __init__(self, host: ClusterHost) -> None:
        self._host = host
        clustered = host.clustered
        self.node_id = host.config.node_id
        self.broker_epoch = -1 if clustered else _STANDALONE_EPOCH
        self.is_serving = not clustered
        self.controller_id = _NO_CONTROLLER if clustered else self.node_id
        self.controller_epoch = 0
        #: The store (ZooKeeper) cannot be reached: nothing can be decided.
        self.suspended = False
        self.live: Mapping[int, Registration] = {}
        #: The last process closed all log directories cleanly.
        self._is_clean = False
        #: Records or directories that were durable are missing (R12).
        self._is_damaged = False
        self._registering = False
        self._claiming = False
        self.registration_check = RegistrationCheck(host)
        self._outage = StoreOutage(host)
        #: Brokers whose connections broke: their broker epoch, and until when this is remembered.
        self._unreachable: dict[int, tuple[int, int]] = {}
        self._watched: dict[int, tuple[str, int]] = {}
        #: Called when this broker serves, or may not.
        self._joining: Callable[[str | None], None] | None = None
        #: Set while this broker stops.
        self._stop: ControlledShutdown | None = None

    # --- joining --------------------------------------------------------------------------------------------

    def join(self, now_ms: int, done: Callable[[str | None], None]) -> None:
        host = self._host
        self._is_clean = all(each.clean or each.was_unused for each in host.directories.online)
        self._is_damaged = host.partitions.is_damaged or self._lacks_directory()
        self._joining = done
        self._register()

    def _lacks_directory(self) -> bool:
        """Whether a log directory of the last registration is missing or was replaced."""
        before = self._host.image.brokers.get(self.node_id)
        found = {id_text(each.directory_id) for each in self._host.directories.online if each.directory_id}
        return before is not None and not found.issuperset(before.directories)

    def _register(self) -> None:
        if self._registering or self._leaving:
            return
        self._registering = True
        host = self._host
        address = host.config.advertised_listeners[0]
        before = host.image.brokers.get(self.node_id)
        registration = Registration(
            self.node_id,
            address.host,
            address.port,
            host.config.broker_rack,
            tuple(id_text(each.directory_id) for each in host.directories.all if each.directory_id),
            # Without a new id it would look like the last registration, and get its epoch.
            id_text(host.entropy.id_bytes()),
            self._is_clean,
            proposed_epoch(before.epoch if before is not None else -1, host.entropy.token(TOKEN_BYTES)),
            damaged=self._is_damaged,
            durable=TopicConfig.resolve({}, host.config).durable,
        )
        host.outbox.append((REGISTER, registration, self._registered))

    def _registered(self, epoch: int, error: str | None) -> None:
        if not self._registering:
            # The answer belongs to an expired session: `store_back` registers again.
            return
        self._registering = False
        if error is not None:
            if self._joining is not None:
                joining, self._joining = self._joining, None
                joining(error)
            elif not self.suspended:
                self._host.say(f"this broker cannot register in ZooKeeper, and tries again: {error}")
                self._later(self._register_again)
            return
        self.broker_epoch = epoch
        self._host.isolation.run("this broker's registration", self.check_registration)
        self.claim_if_free()

    def _register_again(self) -> None:
        if self.broker_epoch < 0 and not self.suspended:
            self._register()

    def check_registration(self) -> None:
        """The image or this broker's epoch has changed: start or stop serving."""
        if not self._host.clustered or self.broker_epoch < 0:
            return
        host = self._host
        me = host.image.brokers.get(self.node_id)
        known = me is not None and me.epoch == self.broker_epoch
        if known and me is not None and me.fenced:
            host.say("this broker was fenced by the controller, and registers again")
            self.cease()
            self._register()
        elif me is not None and me.epoch > self.broker_epoch:
            # Not this process: its own next registration sets `broker_epoch` first. Two processes with one id
            # must not lead.
            host.say(
                f"another process has registered as broker {self.node_id}, so this one serves nothing more. "
                "Stop this one, and check whether its data directory is a copy"
            )
            self.cease()
        elif known and not self.is_serving:
            self.is_serving = True
            # The controller has seen the flags of this start (R7). A later registration of this process lacks
            # nothing.
            self._is_clean, self._is_damaged = True, False
            host.serve()
            if self._joining is not None:
                joining, self._joining = self._joining, None
                joining(None)

    def cease(self) -> None:
        """The registration ended: stop serving."""
        self.broker_epoch = -1
        if self.is_serving:
            self.is_serving = False
            self._host.cease()
        if self._stop is not None:
            self._stop.end_if_done()

    # --- events of the store --------------------------------------------------------------------------------

    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None:
        self.live = live
        controller = self._host.controller_driver
        if controller.is_active:
            self._host.isolation.run("the controller", controller.live_changed, now_ms)
        self.watch()
        if self._stop is not None:
            self._stop.end_if_done()

    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None:
        host = self._host
        self.controller_id, self.controller_epoch = node_id, epoch
        if host.controller_driver.is_active and (node_id, epoch) != (
            self.node_id,
            host.controller_driver.epoch,
        ):
            host.isolation.run("the controller", host.controller_driver.resign)
            host.proposed = host.image
        self.claim_if_free()
        self.watch()

    def store_suspended(self, now_ms: int) -> None:
        self.suspended = True
        self.registration_check.suspended(now_ms)
        self._outage.begin(now_ms)

    @property
    def store_away_ms(self) -> int:
        """How long the store has been out of reach; 0 while it can be reached."""
        return self._outage.lasts_ms

    def store_back(self, now_ms: int) -> None:
        self.suspended = False
        self.registration_check.back()
        self._outage.end(now_ms)
        host = self._host
        if self.broker_epoch < 0:
            self._register()
        if host.controller_driver.is_active:
            host.isolation.run("the controller", host.controller_driver.resumed, now_ms)
        host.isolation.run("replication", host.replica_roles.isr_updates.retry)
        self.claim_if_free()

    def store_lost(self, now_ms: int) -> None:
        """R6: the session expired, and with it the registration and the controller claim."""
        host = self._host
        self.suspended = True
        self._outage.begin(now_ms)
        self._registering = self._claiming = False
        if host.controller_driver.is_active:
            host.isolation.run("the controller", host.controller_driver.resign)
            host.proposed = host.image
        self.cease()

    # --- the controller -------------------------------------------------------------------------------------

    def claim_if_free(self, *, is_controller_gone: bool = False) -> None:
        """Claim to be the controller if there is none.

        `is_controller_gone`: the controller's port refuses connections.
        """
        if self.suspended or self.broker_epoch < 0 or self._claiming or not self._may_claim:
            return
        host = self._host
        if self.controller_id == _NO_CONTROLLER:
            self._claiming = True
            host.outbox.append((CLAIM, self._claimed))
        elif not host.controller_driver.is_active and (
            is_controller_gone or self.controller_id == self.node_id
        ):
            # A dead broker, or an earlier process of this one, whose session has not expired yet.
            self._usurp()

    def claim_later(self) -> None:
        """This broker resigned but holds the claim: it becomes active when its proposals are answered."""
        self._claiming = True

        def retry() -> None:
            if self._claiming:
                if self._host.proposals:
                    self._later(retry)
                else:
                    self._claiming = False
                    self.claim_if_free()

        self._later(retry)

    def _usurp(self) -> None:
        if not self._claiming and not self.suspended and self.broker_epoch >= 0 and self._may_claim:
            self._claiming = True
            self._host.outbox.append((USURP, self.controller_id, self.controller_epoch, self._claimed))

    def _claimed(self, epoch: int, error: str | None) -> None:
        if not self._claiming:
            # The answer belongs to an expired session.
            return
        self._claiming = False
        host = self._host
        # The same epoch again, if this broker still holds the claim (`claim_later`).
        is_held = (
            epoch == host.controller_driver.epoch == self.controller_epoch
            and not host.controller_driver.is_active
        )
        if error is None and (epoch > host.controller_driver.epoch or (is_held and not host.proposals)):
            self.controller_id, self.controller_epoch = self.node_id, epoch
            host.proposed = host.image
            host.isolation.run("the controller", host.controller_driver.take_over, epoch, host.now_ms)
            self.watch()
        else:
            # Another broker was faster, or the claim failed.
            self._later(self.claim_if_free)

    def mark_unreachable(self, node_id: int) -> None:
        """A connection to this broker broke. If it is dead, the image will soon say so."""
        host = self._host
        node = host.image.brokers.get(node_id)
        if node is not None and not node.fenced:
            self._unreachable[node_id] = node.epoch, host.now_ms + UNREACHABLE_MS

    def unreachable_brokers(self) -> set[int]:
        """Brokers that may be dead. A Metadata request that would name one as a leader waits a moment."""
        if not self._unreachable:
            return set()
        host = self._host
        self._unreachable = {
            node_id: (epoch, until_ms)
            for node_id, (epoch, until_ms) in self._unreachable.items()
            if host.now_ms < until_ms
            and (node := host.image.brokers.get(node_id)) is not None
            and node.epoch == epoch
            and not node.fenced
        }
        return set(self._unreachable)

    def refused(self, node_id: int, now_ms: int) -> None:
        """The port of this broker refuses connections: its process is dead."""
        self.mark_unreachable(node_id)
        if self.suspended or node_id == self.node_id:
            return
        controller = self._host.controller_driver
        if controller.is_active:
            controller.suspect(node_id, now_ms)
        elif node_id == self.controller_id:
            self._usurp()

    def watch(self) -> None:
        """The controller watches all brokers, and all brokers watch the controller."""
        if self._host.controller_driver.is_active:
            wanted = {
                each.node_id: (each.host, each.port)
                for each in self.live.values()
                if each.node_id != self.node_id
            }
        else:
            controller = self.live.get(self.controller_id)
            wanted = (
                {controller.node_id: (controller.host, controller.port)}
                if controller and controller.node_id != self.node_id
                else {}
            )
        if wanted != self._watched:
            self._watched = wanted
            self._host.outbox.append((WATCH, wanted))

    # --- leaving --------------------------------------------------------------------------------------------

    def leave(self, now_ms: int, done: Callable[[], None]) -> None:
        """Controlled shutdown: move leadership to other brokers.

        `done` when it may stop, after ten seconds at most.
        """
        self._stop = ControlledShutdown(self._host, done)
        self._stop.begin(now_ms)

    @property
    def _leaving(self) -> bool:
        """This broker is stopping: it does not register again."""
        return self._stop is not None

    @property
    def _may_claim(self) -> bool:
        return self._stop is None or self._stop.may_claim

    def _later(self, action: Callable[[], None]) -> None:
        self._host.timers.add(Later(action), self._host.now_ms + _RETRY_MS)
