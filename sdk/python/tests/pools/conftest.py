"""Pools of a real server, with real workers that are killed, stopped, starved and lied to."""

import pytest
from trials import Trial

from everbeat.testing import find_binary


@pytest.fixture
def trial():
    """Starts servers with such pools, and leaves nothing of them."""
    if find_binary() is None:
        pytest.skip("there is no everbeat binary: set EVERBEAT_BIN, or put `everbeat` on the path")
    servers = []

    def start(*pools, config=None, env=None):
        server = Trial(*pools, config=config, env=env)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()
