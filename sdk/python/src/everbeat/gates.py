"""Conditions that open a node of a graph.

::

    from everbeat.gates import provided, gt

    gate = provided("score") & (gt("amount", 10_000) | ~provided("approved"))

A list of names stands for "all of them are provided".
"""

from typing import Any, Dict, List, Sequence, Union

Json = Union[List[Any], Dict[str, Any]]


class Gate:
    """A condition on the values of an execution; combine conditions with ``&``, ``|`` and ``~``."""

    def __init__(self, json: Json) -> None:
        self.json = json

    def __and__(self, other: "GateLike") -> "Gate":
        return Gate({"and": [self.json, to_json(other)]})

    def __or__(self, other: "GateLike") -> "Gate":
        return Gate({"or": [self.json, to_json(other)]})

    def __invert__(self) -> "Gate":
        return Gate({"not": self.json})

    def __bool__(self) -> bool:
        raise TypeError("a gate has no truth of its own: combine gates with &, | and ~, not with and, or, not")

    def __repr__(self) -> str:
        return f"Gate({self.json!r})"


# A gate, the name of a node, names of nodes that must all be provided, or the JSON form.
GateLike = Union[Gate, str, Sequence[str], Dict[str, Any]]


def provided(node: str) -> Gate:
    """The node has a value; a tick is due."""
    return Gate({"provided": node})


def is_true(node: str) -> Gate:
    """The node's value is ``true``."""
    return Gate({"is_true": node})


def is_false(node: str) -> Gate:
    """The node's value is ``false``."""
    return Gate({"is_false": node})


def eq(node: str, value: Any) -> Gate:
    """The node's value equals ``value``."""
    return Gate({"eq": [node, value]})


def neq(node: str, value: Any) -> Gate:
    """The node has a value other than ``value``."""
    return Gate({"neq": [node, value]})


def lt(node: str, value: Any) -> Gate:
    """The node's value is less than ``value``."""
    return Gate({"lt": [node, value]})


def lte(node: str, value: Any) -> Gate:
    """The node's value is at most ``value``."""
    return Gate({"lte": [node, value]})


def gt(node: str, value: Any) -> Gate:
    """The node's value is greater than ``value``."""
    return Gate({"gt": [node, value]})


def gte(node: str, value: Any) -> Gate:
    """The node's value is at least ``value``."""
    return Gate({"gte": [node, value]})


def to_json(gate: GateLike) -> Json:
    """The JSON form of anything that stands for a gate."""
    if isinstance(gate, Gate):
        return gate.json
    if isinstance(gate, str):
        return [gate]
    if isinstance(gate, dict):
        return gate
    return list(gate)
