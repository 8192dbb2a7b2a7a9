"""What a server answers, with the names that the API gives to its fields."""

from typing import Any, Dict, List, Optional, TypeVar

from everbeat.client.errors import Unsuccessful


class Record:
    """An answer of the server.

    Its fields are attributes, those that this version of the client does not know among them; ``record.json``
    is the whole of it. Times are RFC 3339 texts.
    """

    def __init__(self, json: Dict[str, Any]) -> None:
        self.json = json

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["json"][name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no field {name!r}") from None

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Record) and self.json == other.json

    def __hash__(self) -> int:
        return hash((type(self), str(self.json.get("id"))))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.json.items() if value is not None)
        return f"{type(self).__name__}({fields})"


R = TypeVar("R", bound=Record)


class Run(Record):
    """A durable unit of work."""

    id: str
    kind: str
    task: str
    queue: str
    priority: int
    #: ``scheduled``, ``ready``, ``running``, ``succeeded``, ``failed`` or ``cancelled``.
    state: str
    attempt: int
    tries: int
    max_attempts: int
    input: Any
    result: Any
    error: Optional[Dict[str, Any]]
    progress: Any
    checkpoint: Any
    created_at: str
    run_at: Optional[str]
    started_at: Optional[str]
    finished_at: Optional[str]
    replica_id: Optional[str]
    worker_id: Optional[str]
    liveness: Optional[str]
    policy: Dict[str, Any]
    unique_key: Optional[str]
    #: Its ``key``, ``affinity`` and ``ttl``.
    session: Optional[Dict[str, Any]]

    @property
    def is_finished(self) -> bool:
        """Whether it ended for good."""
        return self.finished_at is not None

    @property
    def succeeded(self) -> bool:
        """Whether it ended well."""
        return self.state == "succeeded"

    def unwrap(self) -> Any:
        """The result; raises `Unsuccessful` if there is none, since the run failed, was cancelled, or goes on."""
        if self.succeeded:
            return self.result
        reason = (self.error or {}).get("message", "no reason was given")
        raise Unsuccessful(f"run {self.id} ({self.task}) is {self.state}: {reason}", self)


class Job(Run):
    """A command that outlives whoever asked for it."""

    job_id: str
    name: Optional[str]
    command: List[str]
    exit_code: Optional[int]
    exit_signal: Optional[int]
    reattached: bool
    workspace_path: Optional[str]


class Accepted(Record):
    """A run of a batch: its id, and whether it is new."""

    id: str
    created: bool


class Attempt(Record):
    """One try at a run."""

    attempt: int
    outcome: Optional[str]
    started_at: str
    ended_at: Optional[str]
    error: Any


class Item(Record):
    """Something that an attempt streamed."""

    #: Rises within the run, across its attempts.
    seq: int
    attempt: int
    at: str
    item: Any


class Execution(Record):
    """A durable instance of a graph."""

    id: str
    graph: str
    version: str
    revision: int
    archived_at: Optional[str]
    created_at: str
    updated_at: str
    #: By node: ``{"value": …, "revision": …, "set_at": …}``.
    values: Dict[str, Dict[str, Any]]
    #: By node: ``{"kind": …, "state": …, "waiting_for": …}``.
    nodes: Dict[str, Dict[str, Any]]


class Value(Record):
    """The value of a node."""

    node: str
    value: Any
    revision: int
    set_at: str
    metadata: Any


class Change(Record):
    """One change in the history of an execution."""

    place: int
    node: str
    kind: str
    value: Any
    revision: int
    at: str
    metadata: Any
    run_id: Optional[str]


class Graph(Record):
    """The definition of a graph as the server has it."""

    name: str
    version: str
    singleton: bool
    nodes: List[Dict[str, Any]]


class Scheduled(Record):
    """What flows and schedules have in common, as the server has it."""

    name: str
    description: Optional[str]
    enabled: bool
    #: ``{"every": …}``, or ``{"cron": …, "tz": …}``.
    schedule: Optional[Dict[str, str]]
    overlap: str
    catch_up: str
    late_after: Optional[str]
    queue: Optional[str]
    priority: int
    policy: Dict[str, Any]
    concurrency: Optional[int]
    group: Optional[str]
    after: List[str]
    #: ``None`` unless code declares it: ``same`` as the code says, or ``changed`` since by somebody.
    declared: Optional[str]
    version: int
    created_at: str
    updated_at: str
    last_run_at: Optional[str]
    last_run_status: Optional[str]
    last_run_error: Optional[str]
    next_due_at: Optional[str]
    late_ms: Optional[int]
    waiting: int
    running: int


class Schedule(Scheduled):
    """A task that is due again and again."""

    task: str
    input: Any


class Flow(Scheduled):
    """Data from a source to a sink, or a task that is handed the configuration."""

    run_interval: Optional[int]
    configuration: Dict[str, Any]
    dead_letter: Optional[Dict[str, Any]]
    max_rejected: Any
    #: Where its last run left off.
    cursor: Any


class FlowRun(Record):
    """One run of a flow or schedule, or one that waits for its turn. ``client.runs`` knows the run by the same id."""

    id: str
    flow: str
    due_at: Optional[str]
    #: ``pending``, ``in_progress``, ``success``, ``failed`` or ``cancelled``.
    status: str
    started_at: Optional[str]
    ended_at: Optional[str]
    duration_ms: Optional[int]
    attempt: int
    counts: Optional[Dict[str, int]]
    cursor: Any
    error_message: Optional[str]
    error_backtrace: Optional[str]


class Event(Record):
    """Something that happened. ``gap`` says that earlier events are no longer kept."""

    id: int
    at: str
    kind: str
    subject: str
    attempt: Optional[int]
    detail: Any
