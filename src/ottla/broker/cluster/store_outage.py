"""Log lines while the cluster store (ZooKeeper) cannot be reached: at once, every minute, and at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ottla.model.timer_wheel import Later

if TYPE_CHECKING:
    from ottla.broker.cluster.host import StoreOutageHost

_RETRY_MS: Final = 60_000


class StoreOutage:
    def __init__(self, host: StoreOutageHost) -> None:
        self._host = host
        self._began_ms: int | None = None
        self._reminder = Later(self._remind)

    @property
    def lasts_ms(self) -> int:
        return 0 if self._began_ms is None else self._host.now_ms - self._began_ms

    def begin(self, now_ms: int) -> None:
        if self._began_ms is not None:
            return
        self._began_ms = now_ms
        self._host.say(
            f"the cluster store cannot be reached (ZooKeeper at {self._where}): this broker serves what it "
            "leads, but no topic, leader, ISR or setting can change. Check that ZooKeeper runs and can be "
            "reached from this machine"
        )
        self._host.timers.add(self._reminder, now_ms + _RETRY_MS)

    def end(self, now_ms: int) -> None:
        if self._began_ms is not None:
            seconds = self.lasts_ms / 1000
            self._began_ms = None
            self._host.timers.cancel(self._reminder)
            self._host.say(f"the cluster store can be reached again, after {seconds:.1f} s")

    def _remind(self) -> None:
        host = self._host
        host.timers.add(self._reminder, host.now_ms + _RETRY_MS)
        serves = "serves what it leads" if host.lifecycle.is_serving else "serves nothing"
        host.say(
            f"the cluster store (ZooKeeper at {self._where}) cannot be reached for {self.lasts_ms // 1000} "
            f"s. This broker {serves}, and nothing in the cluster can change. Start ZooKeeper, or repair the "
            "network to it"
        )

    @property
    def _where(self) -> str:
        return self._host.config.zookeeper_connect or "its address"
