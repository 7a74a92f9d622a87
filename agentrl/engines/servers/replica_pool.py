"""Chooses the replica of a request, and has replicas that died restarted.

Invariants: a key stays on its replica while that serves; a group's keys share one where the load allows it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from agentrl.core.errors import InfraError
from agentrl.core.tasks import cancelled
from agentrl.engines.servers.replica import Replica

log = logging.getLogger(__name__)

LEEWAY = 2
"""Trajectories more than the least loaded replica has, from which on a group's next one goes there."""


class ReplicaPool:
    """Replicas of one model."""

    def __init__(self, replicas: Sequence[Replica], restart: Callable[[Replica], Awaitable[None]]) -> None:
        """`restart` returns when a replica that did not answer is up again, with the current weights."""
        self.replicas, self.restart = list(replicas), restart
        self._keys: dict[str, Replica] = {}
        self._load: Counter[Replica] = Counter()
        self._homes: dict[str, Replica] = {}
        """Group -> the replica that got its last trajectory."""
        self._restarts: dict[Replica, asyncio.Task[None]] = {}

    @property
    def serving(self) -> list[Replica]:
        """The replicas that take requests."""
        return [replica for replica in self.replicas if replica.serving]

    async def pick(self, key: str) -> Replica:
        """The replica of `key`: the one before, or the least loaded. Waits while none serves. Raises InfraError."""
        while True:
            own = self._keys.get(key)
            if own is not None and own.serving:
                return own
            if serving := self.serving:
                return self._assign(key, self._best(key, serving))
            await self._any_restarted()

    def forget(self, key: str) -> None:
        """The trajectory is over."""
        self._homes.pop(group_of(key), None)
        replica = self._keys.pop(key, None)
        if replica is not None:
            self._load[replica] -= 1

    def lost(self, replica: Replica) -> None:
        """Restart a replica that did not answer, in the background."""
        if replica in self._restarts:
            return
        if replica.serving:
            log.warning("%s went away; %d others serve", replica.url, len(self.serving) - 1)
        replica.serving = False
        self._restarts[replica] = asyncio.get_running_loop().create_task(self._restart(replica))

    async def wait_all_serving(self) -> None:
        """Wait until every replica serves. Raises the error that prevents it."""
        while len(self.serving) < len(self.replicas):
            await self._any_restarted()

    async def probe(self, replicas: Sequence[Replica]) -> None:
        """Ask the replicas that serve for a sign of life, and restart those that give none."""
        for replica in replicas:
            if replica.serving and not await replica.answers():
                self.lost(replica)

    async def report_unreachable(self, url: str) -> None:
        """Restart the replica at `url` if it does not answer, and wait until it serves. Raises InfraError."""
        replica = next(replica for replica in self.replicas if replica.url == url)
        await self.probe([replica])
        while not replica.serving:
            await self._any_restarted()

    async def close(self) -> None:
        """Stop all."""
        await cancelled(self._restarts.values())
        await asyncio.gather(*(replica.close() for replica in self.replicas))

    async def _any_restarted(self) -> None:
        """Wait until a restart ends; raises its error."""
        if not self._restarts:
            raise InfraError("no engine serves: start() comes first, and nothing after close()")
        done, _ = await asyncio.wait(self._restarts.values(), return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        await asyncio.sleep(0)

    def _best(self, key: str, serving: Sequence[Replica]) -> Replica:
        """The least loaded replica, or one that has the group's prompt in its cache and about as little load."""
        least = min(serving, key=self._load.__getitem__)
        home = self._homes.get(group_of(key))
        if home is None or home not in serving:
            return least
        return home if self._load[home] < self._load[least] + LEEWAY else least

    def _assign(self, key: str, replica: Replica) -> Replica:
        self.forget(key)
        self._homes[group_of(key)] = replica
        self._keys[key] = replica
        self._load[replica] += 1
        return replica

    async def _restart(self, replica: Replica) -> None:
        await replica.http.close()
        await self.restart(replica)
        replica.serving = True
        del self._restarts[replica]
        log.warning("%s serves again", replica.url)


def group_of(key: str) -> str:
    """The part of a key that a group's trajectories share: all but the number of the sample."""
    return key.rpartition("/")[0] or key
