"""Everbeat: long-running work that is always known to be alive or not.

``App`` and ``Context`` are for tasks, which ``python -m everbeat.worker module:app`` performs; ``Client`` and
``AsyncClient`` submit work and wait for it; ``everbeat.gates`` has the conditions of graphs, and
``everbeat.testing`` what tests need.
"""

import importlib
from typing import TYPE_CHECKING, Any, List

from everbeat._version import __version__
from everbeat.app import App, Task
from everbeat.context import AsyncContext, Context, Session
from everbeat.errors import Cancelled, CheckpointRefused, Permanent
from everbeat.graphs import Graph
from everbeat.schedules import Schedule
from everbeat.values import NotJson

if TYPE_CHECKING:
    from everbeat.client import (
        AsyncClient,
        Client,
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

# Imported when they are first asked for. A worker whose tasks use no client does without all that clients need, starts
# sooner, and takes less memory.
_OF_CLIENTS = frozenset(
    {
        "AsyncClient",
        "Client",
        "ComputationFailed",
        "Conflict",
        "EverbeatError",
        "Forbidden",
        "NotFound",
        "NotSet",
        "Problem",
        "Unreachable",
        "Unsuccessful",
        "WaitTimedOut",
    }
)


def __getattr__(name: str) -> Any:
    if name == "client":
        return importlib.import_module("everbeat.client")
    if name in _OF_CLIENTS:
        found = getattr(importlib.import_module("everbeat.client"), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted({*globals(), *__all__})
