"""The app that the tests' workers perform."""

import asyncio
import ctypes
import functools
import logging
import threading
import time
from pathlib import Path

import everbeat

app = everbeat.App()


@app.task
def add(ctx: everbeat.Context, a: int, b: int = 10) -> int:
    return a + b


@app.task
def whatever(ctx: everbeat.Context, *args, **named):
    return {"args": list(args), "named": named}


@app.task("async_add")
async def add_in_loop(ctx: everbeat.AsyncContext, a: int, b: int) -> int:
    await ctx.heartbeat(done=1, total=2)
    return a + b


@app.task
def facts(ctx: everbeat.Context):
    return {
        "run_id": ctx.run_id,
        "attempt": ctx.attempt,
        "fence": ctx.fence,
        "task": ctx.task,
        "args": ctx.args,
        "execution_id": ctx.execution_id,
        "node": ctx.node,
        "session": ctx.session and [ctx.session.key, ctx.session.id, ctx.session.is_new],
        "resume": ctx.resume({"page": 0}),
        "has_time": ctx.time_left is not None and 0 < ctx.time_left <= 60,
        "thread": threading.current_thread().name,
    }


@app.task
def count(ctx: everbeat.Context, to: int):
    yield from range(to)
    return {"counted": to}


@app.task
def count_on(ctx: everbeat.Context, path: str):
    """Streams two items, and one more when a file is there."""
    yield from (1, 2)
    while not Path(path).exists():
        time.sleep(0.01)
    ctx.log.info("counted in attempt %s", ctx.attempt)
    yield 3


@app.task
async def async_count(ctx: everbeat.AsyncContext, to: int):
    for number in range(to):
        yield number


@app.task
def flood(ctx: everbeat.Context, path: str, kilobytes: int = 1):
    """Yields for ever, and writes how many were taken."""
    taken = 0
    try:
        while True:
            yield "x" * 1024 * kilobytes
            taken += 1
            Path(path).write_text(str(taken))
    except everbeat.Cancelled:
        Path(path).write_text(f"cancelled after {taken}")
        raise


@app.task
async def async_flood(ctx: everbeat.AsyncContext, path: str, kilobytes: int = 1):
    taken = 0
    try:
        while True:
            yield "x" * 1024 * kilobytes
            taken += 1
            Path(path).write_text(str(taken))
    except everbeat.Cancelled:
        Path(path).write_text(f"cancelled after {taken}")
        raise


@app.task
def fails(ctx: everbeat.Context, message: str):
    raise ValueError(message)


@app.task
def fail_for_good(ctx: everbeat.Context):
    raise everbeat.Permanent("no such customer")


@app.task
async def async_fail(ctx: everbeat.AsyncContext):
    raise KeyError("x")


@app.task
def leave(ctx: everbeat.Context):
    raise SystemExit(3)


@app.task
def give(ctx: everbeat.Context, what: str):
    return {"set": {1}, "nan": float("nan"), "large": "x" * 100_000}[what]


@app.task
def yield_wrong(ctx: everbeat.Context):
    yield 1
    yield object()


@app.task
def checkpoint(ctx: everbeat.Context, value="half"):
    try:
        ctx.heartbeat(done=1, note="before")
        ctx.heartbeat(done=5, total=10, checkpoint={"page": value})
    except everbeat.CheckpointRefused as refused:
        return f"refused: {refused}"
    return "stored"


@app.task
async def async_checkpoint(ctx: everbeat.AsyncContext):
    await ctx.heartbeat(checkpoint=[1, 2])
    return "stored"


@app.task
def beats(ctx: everbeat.Context, count: int):
    for done in range(count):
        ctx.heartbeat(done=done)
    return "beaten"


@app.task
def until_cancelled(ctx: everbeat.Context, beat: bool = True, result=None):
    ctx.heartbeat(note="started")
    if not beat:
        while not ctx.cancelled:
            time.sleep(0.01)
        return result
    while True:
        ctx.heartbeat(note="started")
        time.sleep(0.01)


@app.task
def until_draining(ctx: everbeat.Context):
    ctx.heartbeat(note="started")
    while not ctx.draining:
        ctx.heartbeat(note="started")
        time.sleep(0.01)
    return {"cancelled": ctx.cancelled}


@app.task
async def async_until_cancelled(ctx: everbeat.AsyncContext, path: str):
    await ctx.heartbeat(note="started")
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        Path(path).write_text(f"cancelled={ctx.cancelled}")
        raise


@app.task
def wait_for(ctx: everbeat.Context, path: str):
    """Goes on when a file appears; takes no notice of anything else."""
    ctx.heartbeat(note="started")
    while not Path(path).exists():
        time.sleep(0.01)
    return Path(path).read_text()


@app.task
async def hang_loop(ctx: everbeat.AsyncContext):
    await ctx.heartbeat(note="started")
    time.sleep(3600)


@app.task
def hold_gil(ctx: everbeat.Context, seconds: int, deaf: bool = False):
    """Holds the interpreter's lock in C; if deaf, signal 62 is ignored."""
    if deaf:
        ctypes.CDLL(None).signal(62, ctypes.c_void_p(1))
    ctx.heartbeat(note="started", checkpoint="about to")
    ctypes.PyDLL(None).sleep(seconds)
    return "released"


@app.task
def log(ctx: everbeat.Context, lines: int = 0):
    ctx.log.info("hello from %s", ctx.task)
    logging.getLogger("elsewhere").warning("from elsewhere")
    try:
        raise ValueError("inside")
    except ValueError:
        ctx.log.exception("it failed")
    ctx.log.error("x" * 40_000)
    print("printed")
    return


class Adder:
    async def __call__(self, ctx, a):
        return a + 1


app.task("callable_object")(Adder())
app.task("partial")(functools.partial(add, b=100))

graph = app.graph("order", version=2)
graph.input("price", "count")


@graph.compute(gate=["price", "count"], max_attempts=5)
def total(ctx: everbeat.Context, price, count, discount=0):
    return price * count - discount
