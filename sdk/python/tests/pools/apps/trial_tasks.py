"""Tasks that behave, and tasks that do not."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import everbeat

app = everbeat.App()


@app.task
def reply(ctx, value=None):
    return value


@app.task
def where(ctx):
    """Of which process this is, and what it was given."""
    return {
        "pid": os.getpid(),
        "cwd": os.getcwd(),
        "env": {name: value for name, value in os.environ.items() if name.startswith(("TRIAL_", "EVERBEAT_"))},
        "home": os.environ.get("HOME"),
        "secrets": [name for name in os.environ if "SECRET" in name],
    }


@app.task
def raise_error(ctx, message):
    raise ValueError(message)


@app.task
def count(ctx, path, to, pause=0.0):
    """Counts on from its checkpoint, and leaves a line for each attempt: its number, and where it began."""
    start = ctx.resume(0)
    with open(path, "a") as file:
        file.write(f"{ctx.attempt} {start}\n")
    for number in range(start, to):
        ctx.heartbeat(done=number + 1, total=to, note=f"at {number}", checkpoint=number + 1)
        time.sleep(pause)
    return {"attempt": ctx.attempt, "began_at": start}


@app.task
def eat(ctx, mebibytes):
    """Takes memory."""
    return len([bytearray(b"x") * (1 << 20) for _ in range(mebibytes)])


@app.task
def work(ctx, seconds, path=None):
    """Takes its time, and leaves a line when it is done."""
    time.sleep(seconds)
    if path:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{ctx.run_id}\n".encode())
        os.close(fd)
    return os.getpid()


@app.task
def wait_for(ctx, path):
    ctx.heartbeat(note="begun")
    while not Path(path).exists():
        time.sleep(0.01)
    return os.getpid()


@app.task
def scribble(ctx, path):
    """Leaves dots for as long as it lives."""
    while True:
        with open(path, "a") as file:
            file.write(".")
        time.sleep(0.01)


@app.task
def until_cancelled(ctx):
    ctx.heartbeat(note="begun")
    while not ctx.cancelled:
        time.sleep(0.005)
    raise everbeat.Cancelled("as told")


@app.task
def stubborn(ctx, how):
    """Never ends by itself."""
    ctx.heartbeat(note="begun")
    while True:
        if how == "sleeps":
            time.sleep(3600)


@app.task
def hold_gil_idle(ctx, seconds=3600):
    ctx.heartbeat(note="begun", checkpoint="held")
    ctypes.PyDLL(None).sleep(seconds)


@app.task
def hold_gil_computing(ctx, seconds=3600.0):
    """One call into C that computes for about so long, and never lets the interpreter's lock go."""
    at = time.monotonic()
    sum(range(10_000_000))
    each = (time.monotonic() - at) / 10_000_000
    ctx.heartbeat(note="begun", checkpoint="held")
    sum(range(int(seconds / each)))
    return "computed"


@app.task
def deadlock(ctx):
    ctx.heartbeat(note="begun")
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@app.task
def grow(ctx, megabytes):
    ctx.heartbeat(note="begun", checkpoint="begun")
    held = []
    for _ in range(megabytes):
        held.append(os.urandom(1 << 20))
        time.sleep(0.002)
    time.sleep(3600)


@app.task
def chatter(ctx, megabytes, stream="stderr", line=1000):
    out = getattr(sys, stream)
    text = "x" * line + "\n"
    for _ in range(megabytes * (1 << 20) // len(text)):
        out.write(text)
    return "said"


@app.task
def endless_line(ctx, megabytes):
    for _ in range(megabytes):
        sys.stderr.write("y" * (1 << 20))
    sys.stderr.write("\n")
    return "said"


@app.task
def stream(ctx, items, size):
    for _ in range(items):
        yield "z" * size


@app.task
def items(ctx, to, pause=0.0, size=0):
    """Streams numbers, each with some text."""
    for number in range(to):
        yield [number, "i" * size]
        time.sleep(pause)
    return ctx.attempt


@app.task
def tread(ctx, path):
    """Leaves a mark with its time for as long as it may go on: its attempt, and the machine's clock."""
    ctx.heartbeat(note="begun")
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while not ctx.cancelled:
        os.write(fd, f"{ctx.attempt} {time.clock_gettime(time.CLOCK_BOOTTIME)}\n".encode())
        if Path(path + ".enough").exists():
            return ctx.attempt
        time.sleep(0.005)
    raise everbeat.Cancelled("as told")


_SLEEPER = "import signal,sys,time; {ignore}; time.sleep(600)"
_IGNORE = "[signal.signal(s, signal.SIG_IGN) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]"


@app.task
def brood(ctx, mark):
    """Starts a child, a child in a session of its own, a daemon of the second generation, one that ignores every polite
    signal, and one without anything in its environment; says who they are."""
    plain, deaf = _SLEEPER.format(ignore="pass"), _SLEEPER.format(ignore=_IGNORE)
    command = [sys.executable, "-S", "-c"]
    null = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.Popen([*command, plain, mark, "child"], **null)
    subprocess.Popen([*command, plain, mark, "session"], start_new_session=True, **null)
    subprocess.Popen([*command, deaf, mark, "deaf"], start_new_session=True, **null)
    subprocess.Popen([*command, deaf, mark, "bare"], start_new_session=True, env={}, **null)
    twice = (
        "import os,sys,time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        f"os.execv(sys.executable, [sys.executable, '-S', '-c', {deaf!r}, sys.argv[1], 'daemon'])\n"
    )
    subprocess.run([*command, twice, mark], check=True, **null)
    ctx.heartbeat(note="begun")
    while True:
        time.sleep(1)
