"""The lease that the server gives this process, ping by ping."""

import threading
from typing import Callable, Optional, Tuple

from everbeat.worker import clock
from everbeat.worker import worker_pb2 as pb
from everbeat.worker.attempts import Attempts
from everbeat.worker.ending import emergency, say

# How long a worker of a pool tries to be welcomed for the first time: no server has told it its time to live.
FIRST_TTL_SECONDS = 30.0

# After so many intervals without a ping, and no less than this, something is wrong with the connection.
_QUIET_INTERVALS, _SHORTEST_QUIET_SECONDS = 3, 1.0

# Shares of the time that is vouched for. Work whose effects are not fenced is told to stop at the first; if it has not
# at the second, the process ends. What is left is for timers of the kernel: see `everbeat.worker.guard`.
_STOP_SHARE, _END_SHARE = 0.9, 0.95


class Pulse:
    """Knows until when this worker may live, and until when somebody vouches for its work.

    ``lost`` is called when no valid ping has come for the time to live: it ends the process, or has the worker
    begin anew.
    """

    def __init__(self, attempts: Attempts, lost: Callable[[], None], first_ttl: Optional[float]) -> None:
        self._lock = threading.Lock()
        self._attempts = attempts
        self._lost = lost
        self._epoch: Optional[int] = None
        self._ttl = first_ttl
        self._interval: Optional[float] = None
        self._heard = clock.now()
        self._warned = False
        # When this worker last said what the next ping answers: its hello, or a pong. That ping was sent later, however
        # long it was under way, so what it vouches for counts from here.
        self._spoke = self._heard
        self._vouched: Optional[Tuple[float, float]] = None

    def spoke(self) -> None:
        """A hello or a pong is about to be sent."""
        with self._lock:
            self._spoke = clock.now()

    def welcomed(self, welcome: pb.Welcome) -> bool:
        """A connection begins; false if it comes too late."""
        with self._lock:
            in_time = not self._is_over(clock.now())
            if in_time:
                self._epoch = welcome.epoch
                self._ttl = welcome.worker_ttl_ms / 1000 or None
                self._interval = welcome.ping_interval_ms / 1000 if self._ttl else None
                self._hear()
        if not in_time:
            self._lost()
        return in_time

    def pinged(self, ping: pb.Ping) -> bool:
        """Whether a ping is valid. One that is found after the time to live, by a process that was stopped
        meanwhile, does not bring the worker back."""
        with self._lock:
            if ping.epoch != self._epoch:
                return False
            in_time = not self._is_over(clock.now())
            if in_time:
                self._hear()
                self._vouched = (self._spoke, ping.vouched_ms / 1000)
                self._attempts.guard.vouch(*self._vouched)
        if not in_time:
            self._lost()
        return in_time

    def restart(self) -> None:
        """The worker begins anew: nobody has given it a time to live, and nobody vouches for it."""
        with self._lock:
            self._epoch = self._ttl = self._interval = self._vouched = None
            self._hear()

    def quiet_at(self) -> Optional[float]:
        """When a connection counts as broken unless a ping comes. Never, if the server sends none, or if there would
        not be as much time again to connect anew."""
        with self._lock:
            if self._interval is None or self._ttl is None:
                return None
            quiet = max(_QUIET_INTERVALS * self._interval, _SHORTEST_QUIET_SECONDS)
            return self._heard + quiet if 2 * quiet <= self._ttl else None

    def check(self, now: float) -> Optional[float]:
        """Of the watchdog: does what is due, and says when the next thing will be."""
        with self._lock:
            over = self._is_over(now)
            warn = self._ttl is not None and not self._warned and now >= self._heard + self._ttl / 2
            self._warned = self._warned or warn
            ttl, heard, vouched = self._ttl, self._heard, self._vouched
        if over:
            self._lost()
            return None
        if warn:
            say(f"everbeat: no ping for {now - heard:.1f} s; this worker stops at {ttl:.1f} s")
        dues = [] if ttl is None else [heard + ttl if self._warned else heard + ttl / 2]
        if vouched is not None:
            isolated = self._check_isolation(now, *vouched)
            dues += [] if isolated is None else [isolated]
        return min(dues, default=None)

    def _check_isolation(self, now: float, since: float, vouched: float) -> Optional[float]:
        """Stops work whose effects are not fenced before somebody else may take it over."""
        unfenced = self._attempts.unfenced_effects()
        if not unfenced:
            return None
        stop, end = since + vouched * _STOP_SHARE, since + vouched * _END_SHARE
        if now < stop:
            return stop
        with self._attempts.lock:
            for attempt in unfenced:
                attempt.cancel()
        if now >= end and self._attempts.unfenced_effects():
            emergency("isolated")
        return end

    def _is_over(self, now: float) -> bool:
        return self._ttl is not None and now >= self._heard + self._ttl

    def _hear(self) -> None:
        self._heard = clock.now()
        self._warned = False
