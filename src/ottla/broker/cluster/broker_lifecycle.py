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
from ottla.broker.cluster.liveness_check import LivenessCheck
from ottla.broker.cluster.store_outage import StoreOutage
from ottla.config.topic import TopicConfig
from ottla.controller.broker_epoch import TOKEN_BYTES, proposed_epoch
from ottla.log.names import id_text
from ottla.model.timer_wheel import Later
from ottla.ports.effects import CLAIM, REGISTER, USURP, WATCH
from ottla.ports.store import Registration

if TYPE_CHECKING:
    from ottla.broker.core import Broker

#: When something that should have worked did not.
_AGAIN_MS: Final = 300
_NOBODY: Final = -1
#: How long a broker whose connection broke is not named as a leader, if nothing is decided about it meanwhile.
DOUBT_MS: Final = 500
#: The epoch of a broker on its own.
_ALONE: Final = 1


class BrokerLifecycle:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        clustered = broker.clustered
        self.node_id = broker.config.node_id
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
        self.cut_off = LivenessCheck(broker)
        self._outage = StoreOutage(broker)
        #: Brokers whose connections broke a moment ago: the life in which they did, and until when that is remembered.
        self._doubted: dict[int, tuple[int, int]] = {}
        self._watched: dict[int, tuple[str, int]] = {}
        #: Who waits for this broker to serve.
        self._joining: Callable[[str | None], None] | None = None
        #: While this broker stops.
        self._stop: ControlledShutdown | None = None

    # --- joining ----------------------------------------------------------------------------------------------

    def join(self, now_ms: int, done: Callable[[str | None], None]) -> None:
        broker = self._broker
        self._is_clean = all(each.clean or each.was_unused for each in broker.directories.online)
        self._is_damaged = broker.partitions.is_damaged or self._lacks_directory()
        self._joining = done
        self._register()

    def _lacks_directory(self) -> bool:
        """Whether a log directory that this broker had in its last life is not to be found any more, or was replaced."""
        before = self._broker.image.brokers.get(self.node_id)
        there = {id_text(each.directory_id) for each in self._broker.directories.online if each.directory_id}
        return before is not None and not there.issuperset(before.directories)

    def _register(self) -> None:
        if self._registering or self._leaving:
            return
        self._registering = True
        broker = self._broker
        address = broker.config.advertised_listeners[0]
        before = broker.image.brokers.get(self.node_id)
        registration = Registration(
            self.node_id,
            address.host,
            address.port,
            broker.config.broker_rack,
            tuple(id_text(each.directory_id) for each in broker.directories.all if each.directory_id),
            # A registration like the one before would be taken for the same one, and get the same epoch.
            id_text(broker.entropy.id_bytes()),
            self._is_clean,
            proposed_epoch(before.epoch if before is not None else -1, broker.entropy.token(TOKEN_BYTES)),
            damaged=self._is_damaged,
            durable=TopicConfig.resolve({}, broker.config).durable,
        )
        broker.outbox.append((REGISTER, registration, self._registered))

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
                self._broker.say(f"this broker cannot register: {error}")
                self._later(self._register_again)
            return
        self.broker_epoch = epoch
        self._broker.isolation.run("this broker's registration", self.look)
        self.claim_if_free()

    def _register_again(self) -> None:
        if self.broker_epoch < 0 and not self.suspended:
            self._register()

    def look(self) -> None:
        """The image, or this broker's epoch, has changed: see whether it serves."""
        if not self._broker.clustered or self.broker_epoch < 0:
            return
        broker = self._broker
        me = broker.image.brokers.get(self.node_id)
        known = me is not None and me.epoch == self.broker_epoch
        if known and me is not None and me.fenced:
            broker.say("this broker was taken for dead, and registers anew")
            self.cease()
            self._register()
        elif me is not None and me.epoch > self.broker_epoch:
            # Its own next life would be asked for here first. Two that answer to one number must not both lead.
            broker.say(
                f"another process has registered as broker {self.node_id}: this one serves no more. Stop it, and look whether "
                "its data directory was copied"
            )
            self.cease()
        elif known and not self.is_serving:
            self.is_serving = True
            # Only now has the controller seen how this process began (R7). If it must register anew, nothing is lost.
            self._is_clean, self._is_damaged = True, False
            broker.serve()
            if self._joining is not None:
                joining, self._joining = self._joining, None
                joining(None)

    def cease(self) -> None:
        """This life of the broker is over."""
        self.broker_epoch = -1
        if self.is_serving:
            self.is_serving = False
            self._broker.cease()
        if self._stop is not None:
            self._stop.look()

    # --- what the store tells ---------------------------------------------------------------------------------

    def live_brokers(self, live: Mapping[int, Registration], now_ms: int) -> None:
        self.live = live
        controlling = self._broker.controller_driver
        if controlling.is_active:
            self._broker.isolation.run("the controller", controlling.live_changed, now_ms)
        self.watch()
        if self._stop is not None:
            self._stop.look()

    def controller_is(self, node_id: int, epoch: int, now_ms: int) -> None:
        broker = self._broker
        self.controller_id, self.controller_epoch = node_id, epoch
        if broker.controller_driver.is_active and (node_id, epoch) != (
            self.node_id,
            broker.controller_driver.epoch,
        ):
            broker.isolation.run("the controller", broker.controller_driver.resign)
            broker.proposed = broker.image
        self.claim_if_free()
        self.watch()

    def store_suspended(self, now_ms: int) -> None:
        self.suspended = True
        self.cut_off.suspended(now_ms)
        self._outage.begin(now_ms)

    @property
    def store_away_ms(self) -> int:
        """For how long the store cannot be reached; 0 while it can."""
        return self._outage.lasts_ms

    def store_back(self, now_ms: int) -> None:
        self.suspended = False
        self.cut_off.back()
        self._outage.end(now_ms)
        broker = self._broker
        if self.broker_epoch < 0:
            self._register()
        if broker.controller_driver.is_active:
            broker.isolation.run("the controller", broker.controller_driver.resumed, now_ms)
        broker.isolation.run("replication", broker.replica_roles.isr_updates.retry)
        self.claim_if_free()

    def store_lost(self, now_ms: int) -> None:
        """R6: the session is over, and with it the registration and the control that it held."""
        broker = self._broker
        self.suspended = True
        self._outage.begin(now_ms)
        self._registering = self._claiming = False
        if broker.controller_driver.is_active:
            broker.isolation.run("the controller", broker.controller_driver.resign)
            broker.proposed = broker.image
        self.cease()

    # --- control ----------------------------------------------------------------------------------------------

    def claim_if_free(self, *, is_controller_gone: bool = False) -> None:
        """`is_controller_gone`: the controller's port refuses."""
        if self.suspended or self.broker_epoch < 0 or self._claiming or not self._may_claim:
            return
        broker = self._broker
        if self.controller_id == _NOBODY:
            self._claiming = True
            broker.outbox.append((CLAIM, self._claimed))
        elif not broker.controller_driver.is_active and (
            is_controller_gone or self.controller_id == self.node_id
        ):
            # Gone, or an earlier life of this broker; its session has not ended yet.
            self._usurp()

    def claim_later(self) -> None:
        """This broker holds control and does not use it: it takes it up once everything is answered that was proposed before."""
        self._claiming = True

        def again() -> None:
            if self._claiming:
                if self._broker.proposals:
                    self._later(again)
                else:
                    self._claiming = False
                    self.claim_if_free()

        self._later(again)

    def _usurp(self) -> None:
        if not self._claiming and not self.suspended and self.broker_epoch >= 0 and self._may_claim:
            self._claiming = True
            self._broker.outbox.append((USURP, self.controller_id, self.controller_epoch, self._claimed))

    def _claimed(self, epoch: int, error: str | None) -> None:
        if not self._claiming:
            # Of a session that is over.
            return
        self._claiming = False
        broker = self._broker
        # The same epoch again if it is still this broker's, which had stepped down (`claim_later`).
        is_held = (
            epoch == broker.controller_driver.epoch == self.controller_epoch
            and not broker.controller_driver.is_active
        )
        if error is None and (epoch > broker.controller_driver.epoch or (is_held and not broker.proposals)):
            self.controller_id, self.controller_epoch = self.node_id, epoch
            broker.proposed = broker.image
            broker.isolation.run("the controller", broker.controller_driver.take_over, epoch, broker.now_ms)
            self.watch()
        else:
            # Somebody was quicker, whose name follows; or it failed.
            self._later(self.claim_if_free)

    def doubt(self, node_id: int) -> None:
        """A connection to this broker broke: if it is dead, that will be in the image in a moment."""
        broker = self._broker
        node = broker.image.brokers.get(node_id)
        if node is not None and not node.fenced:
            self._doubted[node_id] = node.epoch, broker.now_ms + DOUBT_MS

    def doubted(self) -> set[int]:
        """Those of whom it is not known whether they live: whoever asks for leaders now is better told a little later."""
        if not self._doubted:
            return set()
        broker = self._broker
        self._doubted = {
            node_id: (epoch, until_ms)
            for node_id, (epoch, until_ms) in self._doubted.items()
            if broker.now_ms < until_ms
            and (node := broker.image.brokers.get(node_id)) is not None
            and node.epoch == epoch
            and not node.fenced
        }
        return set(self._doubted)

    def refused(self, node_id: int, now_ms: int) -> None:
        """Nobody listens where this broker did: its process is gone."""
        self.doubt(node_id)
        if self.suspended or node_id == self.node_id:
            return
        controlling = self._broker.controller_driver
        if controlling.is_active:
            controlling.suspect(node_id, now_ms)
        elif node_id == self.controller_id:
            self._usurp()

    def watch(self) -> None:
        """The controller watches everybody, everybody watches the controller."""
        if self._broker.controller_driver.is_active:
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
            self._broker.outbox.append((WATCH, wanted))

    # --- leaving ----------------------------------------------------------------------------------------------

    def leave(self, now_ms: int, done: Callable[[], None]) -> None:
        """Let others take over what this broker leads; `done` when it may stop, after ten seconds in any case."""
        self._stop = ControlledShutdown(self._broker, done)
        self._stop.begin(now_ms)

    @property
    def _leaving(self) -> bool:
        """Whether this broker is about to stop, so that it neither registers again nor claims control."""
        return self._stop is not None

    @property
    def _may_claim(self) -> bool:
        return self._stop is None or self._stop.may_claim

    def _later(self, action: Callable[[], None]) -> None:
        self._broker.timers.add(Later(action), self._broker.now_ms + _AGAIN_MS)
