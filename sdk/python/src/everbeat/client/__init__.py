"""Clients of the HTTP interface, with nothing but the standard library."""

from everbeat.client.aio import AsyncClient
from everbeat.client.blocking import Client
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
from everbeat.client.records import Accepted, Attempt, Change, Event, Execution, Graph, Item, Job, Record, Run, Value

__all__ = [
    "Accepted",
    "AsyncClient",
    "Attempt",
    "Change",
    "Client",
    "ComputationFailed",
    "Conflict",
    "Event",
    "EverbeatError",
    "Execution",
    "Forbidden",
    "Graph",
    "Item",
    "Job",
    "NotFound",
    "NotSet",
    "Problem",
    "Record",
    "Run",
    "Unreachable",
    "Unsuccessful",
    "Value",
    "WaitTimedOut",
]
