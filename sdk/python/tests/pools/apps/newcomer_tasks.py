"""What somebody writes on the first day, and what goes wrong on it."""

import os
import time
from pathlib import Path

import everbeat

app = everbeat.App()


def _until_there(ctx, path):
    while not Path(path).exists() and not ctx.cancelled:
        time.sleep(0.01)


@app.task
def add(ctx, a, b):
    return {"sum": a + b}


@app.task
def numbers(ctx, gate):
    """Streams two items, and the third when it may."""
    for number in (1, 2, 3):
        if number == 3:
            _until_there(ctx, gate)
        ctx.heartbeat(done=number, total=3, note=f"number {number}")
        yield {"number": number}
    return "counted"


@app.task
def divide(ctx, by):
    ctx.log.warning("dividing by %s", by)
    return 1 / by


@app.task
def chapters(ctx, gate):
    """Dies in its first attempt after its second checkpoint."""
    began = ctx.resume(0)
    for chapter in range(began, 3):
        ctx.heartbeat(done=chapter + 1, total=3, note=f"chapter {chapter + 1}", checkpoint=chapter + 1)
        if chapter == 1 and ctx.attempt == 1:
            _until_there(ctx, gate)
            os._exit(9)
    return {"attempt": ctx.attempt, "began_at": began}


@app.task
def until_cancelled(ctx, seen):
    ctx.heartbeat(note="waiting")
    while not ctx.cancelled:
        time.sleep(0.005)
    Path(seen).touch()
    raise everbeat.Cancelled("as told")
