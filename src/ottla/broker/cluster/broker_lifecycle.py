"""This broker's life in the cluster: its registration, whether it may serve, who controls, and who is watched (R5, R6).

A broker serves (leads and follows) while the image has its record with the epoch of its present registration, unfenced. So
whatever it led in an earlier life it leads no more until the controller has decided about it. When it finds itself fenced, or
loses its session with the store, it stops serving and registers anew.

Whoever finds that nobody controls claims control. A controller whose port refuses is dead, not slow, and is replaced
at once; so are other brokers by the controller (`Controlling.suspect`). Epochs make a mistake in this harmless.

A broker on its own always serves and controls itself; nothing here is called for it but `start`.
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

#: When something that should have worked did not.
_RETRY_MS: Final = 300
_NOBODY: Final = -1
#: How long a broker whose connection broke is not named as a leader, if nothing is decided about it meanwhile.
UNREACHABLE_MS: Final = 500
#: The epoch of a broker on its own.
_ALONE: Final = 1


class BrokerLifecycle:
    def __init__(self, host: ClusterHost) -> None:
        self._host = host
        clustered = host.clustered
        self.node_id = host.config.node_id
        self.broker_epoch = -1 if clustered else _ALONE
        self.is_serving = not clustered
        self.controller_id = _NOBODY if clustered else self.node_id
        self.controller_epoch = 0
        #: Whether the store is out of reach: then nothing is decided.
        self.suspended = False
        self.live: Mapping[int, Registration] = {}
        #: Whether this process began with everything that the one before it had.
        self._is_clean = False
        #: Whether it lacks something that an earlier one had made durable (R12).
        self._is_damaged = False
        self._registering = False
        self._claiming = False
        self.registration_check = RegistrationCheck(host)
        self._outage = StoreOutage(host)
        #: Brokers whose connections broke a moment ago: the life in which they did, and until when that is remembered.
        self._unreachable: dict[int, tuple[int, int]] = {}
        self._watched: dict[int, tuple[str, int]] = {}
        #: Who waits for this broker to serve.
        self._joining: Callable[[str | None], None] | None = None
        #: While this broker stops.
        self._stop: ControlledShutdown | None = None

    # --- joining ----------------------------------------------------------------------------------------------

    def join(self, now_ms: int, done: Callable[[str | None], None]) -> None:
        host = self._host
        self._is_clean = all(each.clean or each.was_unused for each in host.directories.online)
        self._is_damaged = host.partitions.is_damaged or self._lacks_directory()
        self._joining = done
        self._register()

    def _lacks_directory(self) -> bool:
        """Whether a log directory that this broker had in its last life is not to be found any more, or was replaced."""
        before = self._host.image.brokers.get(self.node_id)
        there = {id_text(each.directory_id) for each in self._host.directories.online if each.directory_id}
        return before is not None and not there.issuperset(before.directories)

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
            # A registration like the one before would be taken for the same one, and get the same epoch.
            id_text(host.entropy.id_bytes()),
            self._is_clean,
            proposed_epoch(before.epoch if before is not None else -1, host.entropy.token(TOKEN_BYTES)),
            damaged=self._is_damaged,
            durable=TopicConfig.resolve({}, host.config).durable,
        )
        host.outbox.append((REGISTER, registration, self._registered))

    def _registered(self, epoch: int, error: str | None) -> None:
        if not self._registering:
            # Of a session that is over: `store_back` registers anew.
            return
        self._registering = False
        if error is not None:
            if self._joining is not None:
                joining, self._joining = self._joining, None
                joining(error)
            elif not self.suspended:
                self._host.say(f"this broker cannot register: {error}")
                self._later(self._register_again)
            return
        self.broker_epoch = epoch
        self._host.isolation.run("this broker's registration", self.check_registration)
        self.claim_if_free()

    def _register_again(self) -> None:
        if self.broker_epoch < 0 and not self.suspended:
            self._register()

    def check_registration(self) -> None:
        """The image, or this broker's epoch, has changed: see whether it serves."""
        if not self._host.clustered or self.broker_epoch < 0:
            return
        host = self._host
        me = host.image.brokers.get(self.node_id)
        known = me is not None and me.epoch == self.broker_epoch
        if known and me is not None and me.fenced:
            host.say("this broker was taken for dead, and registers anew")
            self.cease()
            self._register()
        elif me is not None and me.epoch > self.broker_epoch:
            # Its own next life would be asked for here first. Two that answer to one number must not both lead.
            host.say(
                f"another process has registered as broker {self.node_id}: this one serves no more. Stop it, and look whether "
                "its data directory was copied"
            )
            self.cease()
        elif known and not self.is_serving:
            self.is_serving = True
            # Only now has the controller seen how this process began (R7). If it must register anew, nothing is lost.
            self._is_clean, self._is_damaged = True, False
            host.serve()
            if self._joining is not None:
                joining, self._joining = self._joining, None
                joining(None)

    def cease(self) -> None:
        """This life of the broker is over."""
        self.broker_epoch = -1
        if self.is_serving:
            self.is_serving = False
            self._host.cease()
        if self._stop is not None:
            self._stop.end_if_done()

    # --- what the store tells ---------------------------------------------------------------------------------

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
        """For how long the store cannot be reached; 0 while it can."""
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
        host.isolation.run("replication", host.replica_roles.catch_up)
        self.claim_if_free()

    def store_lost(self, now_ms: int) -> None:
        """R6: the session is over, and with it the registration and the control that it held."""
        host = self._host
        self.suspended = True
        self._outage.begin(now_ms)
        self._registering = self._claiming = False
        if host.controller_driver.is_active:
            host.isolation.run("the controller", host.controller_driver.resign)
            host.proposed = host.image
        self.cease()

    # --- control ----------------------------------------------------------------------------------------------

    def claim_if_free(self, *, is_controller_gone: bool = False) -> None:
        """`is_controller_gone`: the controller's port refuses."""
        if self.suspended or self.broker_epoch < 0 or self._claiming or not self._may_claim:
            return
        host = self._host
        if self.controller_id == _NOBODY:
            self._claiming = True
            host.outbox.append((CLAIM, self._claimed))
        elif not host.controller_driver.is_active and (
            is_controller_gone or self.controller_id == self.node_id
        ):
            # Gone, or an earlier life of this broker; its session has not ended yet.
            self._usurp()

    def claim_later(self) -> None:
        """This broker holds control and does not use it: it takes it up once everything is answered that was proposed before."""
        self._claiming = True

        def again() -> None:
            if self._claiming:
                if self._host.proposals:
                    self._later(again)
                else:
                    self._claiming = False
                    self.claim_if_free()

        self._later(again)

    def _usurp(self) -> None:
        if not self._claiming and not self.suspended and self.broker_epoch >= 0 and self._may_claim:
            self._claiming = True
            self._host.outbox.append((USURP, self.controller_id, self.controller_epoch, self._claimed))

    def _claimed(self, epoch: int, error: str | None) -> None:
        if not self._claiming:
            # Of a session that is over.
            return
        self._claiming = False
        host = self._host
        # The same epoch again if it is still this broker's, which had stepped down (`claim_later`).
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
            # Somebody was quicker, whose name follows; or it failed.
            self._later(self.claim_if_free)

    def mark_unreachable(self, node_id: int) -> None:
        """A connection to this broker broke: if it is dead, that will be in the image in a moment."""
        host = self._host
        node = host.image.brokers.get(node_id)
        if node is not None and not node.fenced:
            self._unreachable[node_id] = node.epoch, host.now_ms + UNREACHABLE_MS

    def unreachable_brokers(self) -> set[int]:
        """Those of whom it is not known whether they live: whoever asks for leaders now is better told a little later."""
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
        """Nobody listens where this broker did: its process is gone."""
        self.mark_unreachable(node_id)
        if self.suspended or node_id == self.node_id:
            return
        controller = self._host.controller_driver
        if controller.is_active:
            controller.suspect(node_id, now_ms)
        elif node_id == self.controller_id:
            self._usurp()

    def watch(self) -> None:
        """The controller watches everybody, everybody watches the controller."""
        if self._host.controller_driver.is_active:
            wanted = {
                each.node_id: (each.host, each.port)
                for each in self.live.values()
                if each.node_id != self.node_id
            }
        else:
            head = self.live.get(self.controller_id)
            wanted = {head.node_id: (head.host, head.port)} if head and head.node_id != self.node_id else {}
        if wanted != self._watched:
            self._watched = wanted
            self._host.outbox.append((WATCH, wanted))

    # --- leaving ----------------------------------------------------------------------------------------------

    def leave(self, now_ms: int, done: Callable[[], None]) -> None:
        """Let others take over what this broker leads; `done` when it may stop, after ten seconds in any case."""
        self._stop = ControlledShutdown(self._host, done)
        self._stop.begin(now_ms)

    @property
    def _leaving(self) -> bool:
        """Whether this broker is about to stop, so that it neither registers again nor claims control."""
        return self._stop is not None

    @property
    def _may_claim(self) -> bool:
        return self._stop is None or self._stop.may_claim

    def _later(self, action: Callable[[], None]) -> None:
        self._host.timers.add(Later(action), self._host.now_ms + _RETRY_MS)
