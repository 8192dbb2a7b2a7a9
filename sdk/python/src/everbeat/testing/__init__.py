"""For tests of applications: a real server, and made-up attempts.

With pytest, the fixture ``everbeat_server`` starts a server for a test; see `everbeat.testing.plugin`. A task is
an ordinary function, and can be called with the context of a `FakeAttempt`.
"""

from everbeat.testing.attempt import FakeAttempt
from everbeat.testing.server import EverbeatServer, find_binary

__all__ = ["EverbeatServer", "FakeAttempt", "find_binary"]
