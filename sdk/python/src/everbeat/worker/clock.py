"""The clock that leases are measured with."""

import time

# Goes on while the machine sleeps: a lease ends then, too.
CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds since the machine was started."""
    return time.clock_gettime(CLOCK)
