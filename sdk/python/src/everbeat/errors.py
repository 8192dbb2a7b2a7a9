"""What a task raises, and what is raised in a task."""

import asyncio


class Cancelled(asyncio.CancelledError):
    """The attempt was told to stop.

    Raised by ``ctx.heartbeat()``, and where a generator yields. Clean up and let it pass. Like
    ``asyncio.CancelledError``, of which it is one, it is no ``Exception``: ``except Exception`` does not
    swallow it.
    """


class Permanent(Exception):
    """Raise it, or a subclass, when trying again would not help: the run fails at once."""


class CheckpointRefused(Exception):
    """The server cannot store a checkpoint: it is too large, or beyond the bounds of all JSON."""
