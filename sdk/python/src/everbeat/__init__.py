"""Everbeat: long-running work that is always known to be alive or not.

``App`` and ``Context`` are for tasks, which ``python -m everbeat.worker module:app`` performs; ``Client`` and
``AsyncClient`` submit work and wait for it; ``everbeat.gates`` has the conditions of graphs, and
``everbeat.testing`` what tests need.
"""

from everbeat._version import __version__
from everbeat.app import App, Task
from everbeat.client import AsyncClient, Client
from everbeat.client.errors import (
    ComputationFailed,
    Conflict,
    EverbeatError,
    Forbidden,
    NotFound,
    NotSet,
    Problem,
    Unreachable,
    Unsuccessful,
    WaitTimedOut,
)
from everbeat.context import AsyncContext, Context, Session
from everbeat.errors import Cancelled, CheckpointRefused, Permanent
from everbeat.graphs import Graph
from everbeat.schedules import Schedule
from everbeat.values import NotJson

__all__ = [
    "App",
    "AsyncClient",
    "AsyncContext",
    "Cancelled",
    "CheckpointRefused",
    "Client",
    "ComputationFailed",
    "Conflict",
    "Context",
    "EverbeatError",
    "Forbidden",
    "Graph",
    "NotFound",
    "NotJson",
    "NotSet",
    "Permanent",
    "Problem",
    "Schedule",
    "Session",
    "Task",
    "Unreachable",
    "Unsuccessful",
    "WaitTimedOut",
    "__version__",
]
