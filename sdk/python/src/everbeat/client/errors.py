"""What can go wrong between a client and a server."""

from typing import Any, Dict, Optional


class EverbeatError(Exception):
    """Anything that a client raises."""


class Unreachable(EverbeatError):
    """No server answered, for as long as the client was patient."""


class Problem(EverbeatError):
    """The server's answer says what is wrong (``application/problem+json``)."""

    def __init__(self, status: int, json: Dict[str, Any]) -> None:
        self.status = status
        self.json = json
        #: Stable; programs tell problems apart by it, or by `kind`.
        self.type: str = json.get("type", "about:blank")
        #: The last part of `type`, like ``not-found``.
        self.kind: str = self.type.rpartition("/")[2]
        self.title: str = json.get("title", f"HTTP {status}")
        self.detail: str = json.get("detail", "")
        #: What to do about it.
        self.hint: str = json.get("hint", "")
        #: The field or parameter at fault, and what it was.
        self.field: Optional[str] = json.get("field")
        self.value: Optional[str] = json.get("value")
        said = self.detail or self.title
        super().__init__(f"{said} ({self.hint})" if self.hint else said)


class NotFound(Problem):
    """There is no such thing."""


class NotSet(NotFound):
    """The node of an execution has no value."""


class ComputationFailed(Problem):
    """The node of an execution has failed for good."""


class Conflict(Problem):
    """It cannot be done to the thing in its state."""


class Forbidden(Problem):
    """A token is missing, unknown, or not good for this."""


class WaitTimedOut(EverbeatError, TimeoutError):
    """What was waited for has not happened in time; it may still."""


class Unsuccessful(EverbeatError):
    """The work that was waited for did not succeed."""

    def __init__(self, message: str, run: Any) -> None:
        super().__init__(message)
        #: The run or job as it ended.
        self.run = run


def problem(status: int, json: Dict[str, Any]) -> Problem:
    """The exception for an answer."""
    kind = str(json.get("type", "")).rpartition("/")[2]
    by_kind = {"not-set": NotSet, "computation-failed": ComputationFailed}
    by_status = {401: Forbidden, 403: Forbidden, 404: NotFound, 409: Conflict}
    return by_kind.get(kind, by_status.get(status, Problem))(status, json)
