"""Faults of a simulated cluster, and their repair: each fault begins, lasts a while, and ends by itself.

Faults overlap, and the seed chooses them. This module also decides which failures are fair. Under the durable
policy all are. Under the page-cache policy an acknowledged record is in the memory of all members of the ISR,
so it is lost when all of them lose power. Also, the cluster cannot distinguish a killed broker from one that
lost power, and may elect the wrong one.

Therefore, for each such partition, one replica with all records (in the ISR, or eligible) stays certain of
its memory while another has lost it. No power cut takes the last certain replica, nor does a kill while a
power cut is not overcome. A replica is certain if it has not died since the metadata last added it to the
ISR.

With `min.insync.replicas` of 1, nobody remembers who was in sync if the last member of the ISR loses power
before its death is known. Such partitions get no power cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from testkit.sim.cluster import Cluster, Machine

STORE: Final = "store"


class Faults:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        #: Machines with a fault, so that a machine has one fault at a time.
        self._busy: dict[int, None] = {}
        #: Brokers that died without a clean shutdown, until the metadata has their next incarnation: the old
        #: epoch, and whether the memory is lost.
        self._unsure: dict[int, tuple[int, bool]] = {}
        self.kinds: list[Callable[[], str | None]] = [
            self.kill, self.kill, self.kill, self.pause, self.pause, self.cut_power, self.cut_power, self.stop,
            self.isolate, self.isolate, self.split, self.one_way, self.one_way, self.slow_link,
            self.cut_store, self.expire, self.drop, self.drop, self.drop_all, self.slow_store, self.lag, self.lag,
            self.suspect, self.suspect, self.usurp, self.usurp, self.snapshot,
        ]  # fmt: skip
        if cluster.groups is not None or cluster.transactions is not None:
            self.kinds += [self.cut_client, self.cut_client]

    def happen(self) -> str:
        """Inject a fault that is possible now; returns its name."""
        for _ in range(20):
            kind = self.kinds[self._world.below(len(self.kinds))]
            text = kind()
            if text is not None:
                self._world.log(f"fault: {text}")
                return kind.__name__
        return "none"

    # --- machines -----------------------------------------------------------------------------------------------

    def _victim(self) -> Machine | None:
        """A healthy machine, while enough of the others are healthy."""
        machines = self._cluster.machines.values()
        well = [machine for machine in machines if machine.node_id not in self._busy and machine.is_running]
        if len(well) < 2 and not self._world.chance(0.2):
            return None
        if not well:
            return None
        if self._world.chance(0.3):
            # The controller is chosen more often.
            for machine in well:
                if machine.node_id == self._cluster.ensemble.holder:
                    return machine
        return well[self._world.below(len(well))]

    def _then(self, machine: Machine, delay_ms: int, action: Callable[[], None]) -> None:
        self._busy[machine.node_id] = None

        def end() -> None:
            self._busy.pop(machine.node_id, None)
            if not self._cluster.is_healed:
                action()

        self._world.later(delay_ms, end)

    def kill(self) -> str | None:
        machine = self._victim()
        if machine is None or not self._may_die(machine, lost_power=False):
            return None
        self._note_death(machine, lost_power=False)
        machine.kill()
        self._then(machine, self._span(50, 6000), machine.start)
        return f"broker {machine.node_id} is killed"

    def pause(self) -> str | None:
        machine = self._victim()
        if machine is None:
            return None
        machine.pause()
        self._then(machine, self._span(100, 9000), machine.resume)
        return f"broker {machine.node_id} is paused"

    def cut_power(self) -> str | None:
        machine = self._victim()
        if machine is None:
            return None
        if not self._may_die(machine, lost_power=True):
            return self.kill()
        self._note_death(machine, lost_power=True)
        self._then(machine, 100 + self._span(100, 6000), machine.start)
        if self._world.chance(0.5):
            # During some operation.
            machine.disk.cut_after = machine.disk.steps + 1 + self._world.below(12)
            self._world.later(99, machine.lose_power)
        else:
            machine.lose_power()
        return f"broker {machine.node_id} loses its power"

    def _note_death(self, machine: Machine, *, lost_power: bool) -> None:
        known = self._cluster.ensemble.image.brokers.get(machine.node_id)
        member = machine.member
        assert member is not None
        epoch = max(known.epoch if known is not None else -1, member.broker.lifecycle.broker_epoch)
        _before, was_lost = self._unsure.get(machine.node_id, (-1, False))
        self._unsure[machine.node_id] = (epoch, lost_power or was_lost)

    def _may_die(self, machine: Machine, *, lost_power: bool) -> bool:
        image = self._cluster.ensemble.image
        for node_id, (epoch, _lost) in list(self._unsure.items()):
            broker = image.brokers.get(node_id)
            if broker is not None and broker.epoch > epoch and not broker.fenced:
                del self._unsure[node_id]
        for topic in image.topics.values():
            if image.topic_config(topic.name).get("flush.policy", "durable") == "durable":
                continue
            for partition in topic.partitions:
                holders = [*partition.isr, *partition.eligible]
                others = [each for each in holders if each != machine.node_id]
                is_alone = int(image.topic_config(topic.name).get("min.insync.replicas", "1")) < 2
                if lost_power and is_alone and machine.node_id in holders:
                    return False
                is_lost = lost_power or any(self._unsure.get(each, (0, False))[1] for each in holders)
                if is_lost and machine.node_id in holders and all(each in self._unsure for each in others):
                    return False
        return True

    def stop(self) -> str | None:
        machine = self._victim()
        if machine is None or machine.member is None or not machine.member.joined:
            return None
        delay_ms = self._span(50, 4000)
        self._busy[machine.node_id] = None
        member = machine.member

        def stopped() -> None:
            self._world.log(f"b{machine.node_id}: stopped")
            machine.stopped(member)
            self._then(machine, delay_ms, machine.start)

        member.stop_later(stopped)
        return f"broker {machine.node_id} is told to stop"

    # --- the network --------------------------------------------------------------------------------------------

    def _span(self, least_ms: int, most_ms: int) -> int:
        """Short durations are as likely as long ones."""
        most_ms = least_ms + self._world.below(most_ms - least_ms + 1)
        return least_ms + self._world.below(most_ms - least_ms + 1)

    def _cut(self, pairs: list[tuple[str, str]], stores: list[Machine]) -> None:
        cluster = self._cluster
        for source, target in pairs:
            cluster.network.cut(source, target)
        for machine in stores:
            machine.cut_store()

        def mend() -> None:
            for source, target in pairs:
                cluster.network.mend(source, target)
            for machine in stores:
                machine.heal_store()

        self._world.later(self._span(300, 8000), mend)

    def isolate(self) -> str | None:
        machines = list(self._cluster.machines.values())
        machine = machines[self._world.below(len(machines))]
        others = [each.name for each in machines if each is not machine]
        if self._world.chance(0.5):
            others += self._cluster.client_names
        pairs = [(machine.name, each) for each in others] + [(each, machine.name) for each in others]
        from_store = self._world.chance(0.5)
        self._cut(pairs, [machine] if from_store else [])
        return f"broker {machine.node_id} is cut off{' from the store too' if from_store else ''}: {others}"

    def split(self) -> str | None:
        machines = list(self._cluster.machines.values())
        self._world.random.shuffle(machines)
        at = 1 + self._world.below(len(machines) - 1)
        here, there = machines[:at], machines[at:]
        pairs = [(a.name, b.name) for a in here for b in there] + [
            (b.name, a.name) for a in here for b in there
        ]
        side = (here, there, [])[self._world.below(3)]
        self._cut(pairs, side)
        return f"{[m.node_id for m in here]} and {[m.node_id for m in there]} are apart, without store {[m.node_id for m in side]}"

    def one_way(self) -> str | None:
        machines = list(self._cluster.machines.values())
        self._world.random.shuffle(machines)
        source, target = machines[0].name, machines[1].name
        self._cut([(source, target)], [])
        return f"nothing arrives from {source} at {target}"

    def cut_client(self) -> str | None:
        """One client and one broker, in both directions or one."""
        names, machines = self._cluster.client_names, list(self._cluster.machines.values())
        client = names[self._world.below(len(names))]
        broker = machines[self._world.below(len(machines))].name
        pairs = [(client, broker), (broker, client)]
        self._cut(pairs[self._world.below(3) :] or pairs, [])
        return f"{client} and {broker} are apart"

    def slow_link(self) -> str | None:
        machines = list(self._cluster.machines.values())
        self._world.random.shuffle(machines)
        source, target = machines[0].name, machines[1].name
        delay_ms = 20 + self._world.below(400)
        self._cluster.network.slow(source, target, delay_ms)
        self._world.later(self._span(500, 6000), lambda: self._cluster.network.mend(source, target))
        return f"from {source} to {target} takes up to {delay_ms} ms"

    # --- the store ----------------------------------------------------------------------------------------------

    def _client_of(self) -> Machine | None:
        well = [machine for machine in self._cluster.machines.values() if machine.member is not None]
        if self._world.chance(0.5):
            holder = self._cluster.ensemble.holder
            return next((machine for machine in well if machine.node_id == holder), None)
        return well[self._world.below(len(well))] if well else None

    def cut_store(self) -> str | None:
        machine = self._client_of()
        if machine is None:
            return None
        self._cut([], [machine])
        return f"broker {machine.node_id} is cut off from the store"

    def expire(self) -> str | None:
        machine = self._client_of()
        if machine is None or machine.member is None:
            return None
        machine.member.client.expire()
        return f"the session of broker {machine.node_id} is ended"

    def drop(self) -> str | None:
        """A connection to the store breaks soon: during a request, if possible."""
        machine = self._client_of()
        if machine is None or machine.member is None:
            return None
        client, tries = machine.member.client, 40

        def soon() -> None:
            nonlocal tries
            tries -= 1
            if client.is_writing or tries == 0:
                client.drop()
            else:
                self._world.later(25, soon)

        soon()
        return f"the store's connection with broker {machine.node_id} breaks in its next write"

    def drop_all(self) -> str | None:
        ensemble = self._cluster.ensemble
        if ensemble.is_down:
            return None
        ensemble.is_down = True
        for client in list(ensemble.clients):
            client.drop()

        def up() -> None:
            ensemble.is_down = False

        self._world.later(self._span(100, 4000), up)
        return "the store restarts"

    def slow_store(self) -> str | None:
        ensemble = self._cluster.ensemble
        ensemble.slow_ms = 20 + self._world.below(600)

        def fast() -> None:
            ensemble.slow_ms = 0

        self._world.later(self._span(500, 5000), fast)
        return f"the store takes up to {ensemble.slow_ms} ms"

    def lag(self) -> str | None:
        machine = self._client_of()
        if machine is None or machine.member is None:
            return None
        client = machine.member.client
        client.lag_ms = 200 + self._world.below(3000)

        def fast() -> None:
            client.lag_ms = 3

        self._world.later(self._span(500, 6000), fast)
        return f"broker {machine.node_id} hears of the store {client.lag_ms} ms late"

    def snapshot(self) -> str | None:
        """The controller writes a snapshot: a broker that is away for long must reload everything."""
        machine = self._cluster.machines.get(self._cluster.ensemble.holder)
        member = machine.member if machine is not None else None
        if member is None or not member.joined or not member.is_running:
            return None
        member.client.snapshot(member.broker.image.records(), lambda _error: None)
        return f"broker {member.node_id} replaces the metadata log by a snapshot"

    def suspect(self) -> str | None:
        """A broker wrongly suspects that the port of another one refuses connections."""
        well = [machine.member for machine in self._cluster.machines.values() if machine.is_running]
        members = [member for member in well if member is not None and member.joined]
        if len(members) < 2:
            return None
        self._world.random.shuffle(members)
        holder = self._cluster.ensemble.holder
        who = next((each for each in members if each.node_id == holder), members[0])
        whom = next(each for each in members if each is not who)
        self._world.later(1, lambda: who.suspect(whom.node_id))
        return f"broker {who.node_id} takes broker {whom.node_id} for dead"

    def usurp(self) -> str | None:
        """A broker suspects the controller and takes over; often the old one does not notice for a while."""
        machines = [machine for machine in self._cluster.machines.values() if machine.is_running]
        members = [machine.member for machine in machines if machine.member is not None]
        holder = self._cluster.ensemble.holder
        controller = next((each for each in members if each.node_id == holder), None)
        others = [each for each in members if each is not controller and each.joined]
        if controller is None or not others:
            return None
        who = others[self._world.below(len(others))]
        client = controller.client
        client.lag_ms = 200 + self._world.below(4000)

        def hear() -> None:
            client.lag_ms = 3

        self._world.later(client.lag_ms, hear)
        self._world.later(1, lambda: who.suspect(holder))
        return f"broker {who.node_id} takes the controller for dead, which lags {client.lag_ms} ms behind"
