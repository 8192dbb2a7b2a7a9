"""The plugin of pytest, in force wherever this package is installed.

::

    def test_it(everbeat_server):
        client = everbeat_server.client()
        assert client.runs.wait(client.runs.submit("echo", 1).id).unwrap() == 1

    @pytest.mark.everbeat(app="tasks:app")
    def test_my_tasks(everbeat_server): ...

Without the binary (``EVERBEAT_BIN``, or ``everbeat`` on the path) such a test is skipped.
"""

from typing import Iterator

import pytest

from everbeat.testing.server import EverbeatServer, find_binary


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "everbeat(app=None, workers=1, slots=4, env=None, config=None): what the fixture everbeat_server starts",
    )


@pytest.fixture
def everbeat_server(request: pytest.FixtureRequest) -> Iterator[EverbeatServer]:
    """A server of the test's own; the marker ``everbeat(app="module:app")`` gives it a pool of workers."""
    binary = find_binary()
    if binary is None:
        pytest.skip("there is no everbeat binary: set EVERBEAT_BIN, or put `everbeat` on the path")
    marker = request.node.get_closest_marker("everbeat")
    with EverbeatServer(binary, **(marker.kwargs if marker else {})) as server:
        yield server
