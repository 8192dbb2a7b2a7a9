# Made by scripts/stubs from worker.proto with sha256 a0bb21d788a7672b1c0412ca0a8d5f56ebfd5632fa7cce36b3e3690896ef897d
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromWorker(_message.Message):
    __slots__ = ("hello", "pong", "heartbeat", "output", "ended", "draining", "log", "stacks")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    STACKS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    pong: Pong
    heartbeat: Heartbeat
    output: Output
    ended: Ended
    draining: Draining
    log: Log
    stacks: Stacks
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., output: _Optional[_Union[Output, _Mapping]] = ..., ended: _Optional[_Union[Ended, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., log: _Optional[_Union[Log, _Mapping]] = ..., stacks: _Optional[_Union[Stacks, _Mapping]] = ...) -> None: ...

class FromServer(_message.Message):
    __slots__ = ("welcome", "ping", "work", "heartbeat_answer", "cancel", "drain", "ended_answer", "dump", "output_answer", "declined")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_ANSWER_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    ENDED_ANSWER_FIELD_NUMBER: _ClassVar[int]
    DUMP_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_ANSWER_FIELD_NUMBER: _ClassVar[int]
    DECLINED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    ping: Ping
    work: Work
    heartbeat_answer: HeartbeatAnswer
    cancel: Cancel
    drain: Drain
    ended_answer: EndedAnswer
    dump: Dump
    output_answer: OutputAnswer
    declined: Declined
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., work: _Optional[_Union[Work, _Mapping]] = ..., heartbeat_answer: _Optional[_Union[HeartbeatAnswer, _Mapping]] = ..., cancel: _Optional[_Union[Cancel, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., ended_answer: _Optional[_Union[EndedAnswer, _Mapping]] = ..., dump: _Optional[_Union[Dump, _Mapping]] = ..., output_answer: _Optional[_Union[OutputAnswer, _Mapping]] = ..., declined: _Optional[_Union[Declined, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("pool", "secret", "sdk", "tasks", "slots", "queues", "worker_id", "leases", "graphs", "host", "key", "flows", "schedules")
    POOL_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    SDK_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FLOWS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    pool: str
    secret: str
    sdk: str
    tasks: _containers.RepeatedScalarFieldContainer[str]
    slots: int
    queues: _containers.RepeatedScalarFieldContainer[str]
    worker_id: str
    leases: _containers.RepeatedCompositeFieldContainer[Lease]
    graphs: _containers.RepeatedScalarFieldContainer[str]
    host: str
    key: bytes
    flows: _containers.RepeatedScalarFieldContainer[str]
    schedules: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pool: _Optional[str] = ..., secret: _Optional[str] = ..., sdk: _Optional[str] = ..., tasks: _Optional[_Iterable[str]] = ..., slots: _Optional[int] = ..., queues: _Optional[_Iterable[str]] = ..., worker_id: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[Lease, _Mapping]]] = ..., graphs: _Optional[_Iterable[str]] = ..., host: _Optional[str] = ..., key: _Optional[bytes] = ..., flows: _Optional[_Iterable[str]] = ..., schedules: _Optional[_Iterable[str]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("worker_id", "epoch", "ping_interval_ms", "worker_ttl_ms", "key", "message_limit", "answers_output")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    PING_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    WORKER_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    epoch: int
    ping_interval_ms: int
    worker_ttl_ms: int
    key: bytes
    message_limit: int
    answers_output: bool
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ..., ping_interval_ms: _Optional[int] = ..., worker_ttl_ms: _Optional[int] = ..., key: _Optional[bytes] = ..., message_limit: _Optional[int] = ..., answers_output: bool = ...) -> None: ...

class Declined(_message.Message):
    __slots__ = ("kind", "name", "problem")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    problem: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("sequence", "epoch", "vouched_ms")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VOUCHED_MS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    epoch: int
    vouched_ms: int
    def __init__(self, sequence: _Optional[int] = ..., epoch: _Optional[int] = ..., vouched_ms: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("sequence", "running", "lag_ms", "progress", "resident_bytes", "cpu_ms")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    LAG_MS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_MS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    running: int
    lag_ms: int
    progress: int
    resident_bytes: int
    cpu_ms: int
    def __init__(self, sequence: _Optional[int] = ..., running: _Optional[int] = ..., lag_ms: _Optional[int] = ..., progress: _Optional[int] = ..., resident_bytes: _Optional[int] = ..., cpu_ms: _Optional[int] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("lease", "task", "input", "checkpoint", "deadline_ms", "args", "execution_id", "node", "stop_when_isolated", "session", "cancel_grace_ms", "session_id", "session_new")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STOP_WHEN_ISOLATED_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CANCEL_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_NEW_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    task: str
    input: str
    checkpoint: str
    deadline_ms: int
    args: str
    execution_id: str
    node: str
    stop_when_isolated: bool
    session: str
    cancel_grace_ms: int
    session_id: str
    session_new: bool
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., task: _Optional[str] = ..., input: _Optional[str] = ..., checkpoint: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., args: _Optional[str] = ..., execution_id: _Optional[str] = ..., node: _Optional[str] = ..., stop_when_isolated: bool = ..., session: _Optional[str] = ..., cancel_grace_ms: _Optional[int] = ..., session_id: _Optional[str] = ..., session_new: bool = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("run_id", "attempt", "token")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    attempt: int
    token: bytes
    def __init__(self, run_id: _Optional[str] = ..., attempt: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("lease", "done", "total", "note", "checkpoint", "next_within_ms", "sequence")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    NEXT_WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    done: int
    total: int
    note: str
    checkpoint: str
    next_within_ms: int
    sequence: int
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., note: _Optional[str] = ..., checkpoint: _Optional[str] = ..., next_within_ms: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class HeartbeatAnswer(_message.Message):
    __slots__ = ("lease", "verdict", "sequence", "problem")
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        VERDICT_UNSPECIFIED: _ClassVar[HeartbeatAnswer.Verdict]
        VERDICT_GO_ON: _ClassVar[HeartbeatAnswer.Verdict]
        VERDICT_CANCELLED: _ClassVar[HeartbeatAnswer.Verdict]
        VERDICT_DRAINING: _ClassVar[HeartbeatAnswer.Verdict]
        VERDICT_FENCED: _ClassVar[HeartbeatAnswer.Verdict]
        VERDICT_REFUSED: _ClassVar[HeartbeatAnswer.Verdict]
    VERDICT_UNSPECIFIED: HeartbeatAnswer.Verdict
    VERDICT_GO_ON: HeartbeatAnswer.Verdict
    VERDICT_CANCELLED: HeartbeatAnswer.Verdict
    VERDICT_DRAINING: HeartbeatAnswer.Verdict
    VERDICT_FENCED: HeartbeatAnswer.Verdict
    VERDICT_REFUSED: HeartbeatAnswer.Verdict
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    verdict: HeartbeatAnswer.Verdict
    sequence: int
    problem: str
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., verdict: _Optional[_Union[HeartbeatAnswer.Verdict, str]] = ..., sequence: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("lease", "sequence", "item")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    sequence: int
    item: str
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., sequence: _Optional[int] = ..., item: _Optional[str] = ...) -> None: ...

class OutputAnswer(_message.Message):
    __slots__ = ("lease", "sequence")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    sequence: int
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., sequence: _Optional[int] = ...) -> None: ...

class Log(_message.Message):
    __slots__ = ("lease", "level", "text")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    level: str
    text: str
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., level: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class Ended(_message.Message):
    __slots__ = ("lease", "result", "failure", "stopped")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    result: str
    failure: Failure
    stopped: Stopped
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., result: _Optional[str] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., stopped: _Optional[_Union[Stopped, _Mapping]] = ...) -> None: ...

class Stopped(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failure(_message.Message):
    __slots__ = ("message", "permanent", "detail")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PERMANENT_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    message: str
    permanent: bool
    detail: str
    def __init__(self, message: _Optional[str] = ..., permanent: bool = ..., detail: _Optional[str] = ...) -> None: ...

class EndedAnswer(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("lease", "why")
    class Why(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WHY_UNSPECIFIED: _ClassVar[Cancel.Why]
        WHY_CANCELLED: _ClassVar[Cancel.Why]
        WHY_DRAINING: _ClassVar[Cancel.Why]
        WHY_FENCED: _ClassVar[Cancel.Why]
        WHY_JUDGED: _ClassVar[Cancel.Why]
    WHY_UNSPECIFIED: Cancel.Why
    WHY_CANCELLED: Cancel.Why
    WHY_DRAINING: Cancel.Why
    WHY_FENCED: Cancel.Why
    WHY_JUDGED: Cancel.Why
    LEASE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    why: Cancel.Why
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., why: _Optional[_Union[Cancel.Why, str]] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ("grace_ms",)
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    grace_ms: int
    def __init__(self, grace_ms: _Optional[int] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Dump(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Stacks(_message.Message):
    __slots__ = ("sequence", "text")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    text: str
    def __init__(self, sequence: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...
