"""User ids for the runs of a supervisor that is root: one for each slot.

Invariant: while the locks live, no other supervisor on this host uses the same ids. A lock is a bound abstract socket.
"""

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_BLOCK = 100
"""Ids per lock."""
# No other program on Linux hands these out: above the ids of containers and systemd, or, in a container that has only
# the first 65,536, above ordinary users and below systemd's dynamic ones.
_HIGH, _LOW = range(1_900_000_000, 1_901_000_000), range(57_000, 64_000)


@dataclass
class UserIds:
    """A range of ids, from `first` on."""

    locks: list[socket.socket]
    first: int
    sessions: int
    """Sessions that can be open: as many as were requested, or fewer if other supervisors hold the ids."""


def enough_ids(slots: int, sessions: int) -> UserIds:
    """Ids for the zygotes, `slots` job supervisors and up to `sessions` more. Raises OSError for too few."""
    while True:
        try:
            return UserIds(*own_ids(1 + slots + sessions), sessions)
        except OSError:
            if sessions <= _BLOCK:
                raise
            sessions //= 2


def own_ids(count: int) -> tuple[list[socket.socket], int]:
    """Locks, and the first of `count` user ids that they reserve. Raises OSError."""
    size = -(-count // _BLOCK) * _BLOCK
    ids = _HIGH if _maps(_HIGH.stop) else _LOW
    blocks = list(range(ids.start, ids.stop - size + 1, _BLOCK))
    # The names of the locks count within a network namespace only; supervisors in others most likely begin elsewhere.
    begin = os.stat("/proc/self/ns/net").st_ino % max(1, len(blocks))
    for first in blocks[begin:] + blocks[:begin]:
        if locks := _lock_ids(range(first, first + size, _BLOCK)):
            return locks, first
    raise OSError(f"no {count} unused user ids are left for a sandbox")


def _maps(uid: int) -> bool:
    """Whether this process's user namespace has all users and groups up to `uid`."""
    lines = [Path("/proc/self", name).read_text().split() for name in ("uid_map", "gid_map")]
    return all(len(words) == 3 and words[0] == "0" and int(words[2]) > uid for words in lines)


def _lock_ids(blocks: Iterable[int]) -> list[socket.socket]:
    """A lock on each of `blocks`; none if one of them is taken."""
    locks = []
    for block in blocks:
        locks.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        try:
            locks[-1].bind(f"\0agentrl-sandbox-{block}")
        except OSError:
            for lock in locks:
                lock.close()
            return []
    return locks
