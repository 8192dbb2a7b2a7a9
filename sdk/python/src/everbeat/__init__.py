"""Everbeat: long-running work that is always known to be alive or not.

``App`` and ``Context`` are for tasks, performed by ``python -m everbeat.worker module:app``; ``Client`` and
``AsyncClient`` submit work and wait for it; ``everbeat.gates`` has the conditions of graphs and
``everbeat.testing`` a fixture for pytest.
"""

from everbeat._version import __version__
from everbeat.app import App, Task
from everbeat.context import AsyncContext, Context
from everbeat.errors import Cancelled, CheckpointRefused, Permanent
from everbeat.graphs import Graph
from everbeat.values import NotJson

__all__ = [
    "App",
    "AsyncContext",
    "Cancelled",
    "CheckpointRefused",
    "Context",
    "Graph",
    "NotJson",
    "Permanent",
    "Task",
    "__version__",
]
