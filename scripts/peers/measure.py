"""Measures Everbeat, Celery and Dramatiq with the same number of worker processes. Prints JSON.

Each measurement has a process of its own, which starts the system anew. The systems take turns, round by round.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time

import systems

# The rate is that of the tasks after this share: until then workers start, and caches warm.
WARM_SHARE = 0.1


def wanted(name, redis_url, postgres_url):
    """The system of this name."""
    known = {
        "everbeat-sqlite": lambda: systems.Everbeat("sqlite"),
        "everbeat-postgres": lambda: systems.Everbeat(postgres_url),
        "celery-early": lambda: systems.Celery(redis_url, late=False, results=False),
        "celery-late": lambda: systems.Celery(redis_url, late=True, results=False),
        "celery-late-results": lambda: systems.Celery(redis_url, late=True, results=True),
        "dramatiq": lambda: systems.Dramatiq(redis_url, prefetch=0, results=False),
        "dramatiq-prefetch-results": lambda: systems.Dramatiq(redis_url, prefetch=128, results=True),
    }
    if name not in known:
        sys.exit(f"unknown system {name!r}; choose from: {', '.join(known)}")
    return known[name]()


def one(options):
    """One measurement of one system."""
    system = wanted(options.system, options.redis, options.postgres)
    try:
        system.prepare()
        begun = time.perf_counter()
        system.enqueue(options.tasks)
        figures = {"enqueue_per_s": options.tasks / (time.perf_counter() - begun)}
        system.go(options.workers)
        figures["drain_per_s"] = drained(system, options.tasks)
        system.ready()
        begun = time.perf_counter()
        for _ in range(options.submits):
            system.submit()
        submitted = time.perf_counter()
        systems.until(lambda: system.left() == 0, "the last task")
        figures["submit_per_s"] = options.submits / (submitted - begun)
        figures["submit_and_drain_per_s"] = options.submits / (time.perf_counter() - begun)
        if system.answers:
            figures["latency_ms"] = latency(system, options.latencies)
        return {"promises": system.promises, "figures": figures}
    finally:
        system.end()


def drained(system, tasks):
    """Tasks per second, from when the first tenth is done until all are."""
    warm = tasks * (1 - WARM_SHARE)
    begun, left = None, tasks
    give_up = time.monotonic() + systems.PATIENCE_SECONDS
    while left > 0:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{left} of {tasks} tasks are not done")
        time.sleep(systems.LOOK_SECONDS)
        left = system.left()
        if begun is None and left <= warm:
            begun, done_before = time.perf_counter(), tasks - left
    return (tasks - done_before) / (time.perf_counter() - begun)


def latency(system, count):
    """From before the submit until the result is there, one task at a time; in milliseconds."""
    for _ in range(count // 10):
        system.answer()
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        system.answer()
        took.append(1000 * (time.perf_counter() - begun))
    took.sort()
    return {"p50": took[len(took) // 2], "p99": took[min(len(took) - 1, len(took) * 99 // 100)]}


def everything(options):
    names = options.systems.split(",") if options.systems else default_systems(options)
    report, promises = {}, {}
    for number in range(options.rounds):
        for workers in map(int, options.workers.split(",")):
            # The order turns with each round: nobody is always the first.
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                print(f"round {number + 1}, {workers} workers: {name}", file=sys.stderr)
                measured = apart(name, workers, options)
                promises[name] = measured["promises"]
                report.setdefault((name, workers), []).append(measured["figures"])
                print(json.dumps({"system": name, "workers": workers, **rounded(measured["figures"])}), file=sys.stderr)
    rows = [
        {"system": name, "workers": workers, "rounds": len(rounds), **medians(rounds)}
        for (name, workers), rounds in sorted(report.items())
    ]
    print(json.dumps({"machine": machine(), "tasks": options.tasks, "promises": promises, "medians": rows}, indent=2))


def default_systems(options):
    everbeat = ["everbeat-sqlite"] + (["everbeat-postgres"] if options.postgres else [])
    celery = ["celery-early", "celery-late", "celery-late-results"]
    return everbeat + celery + ["dramatiq", "dramatiq-prefetch-results"]


def apart(name, workers, options):
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--redis", options.redis, "--postgres", options.postgres, "--system", name]
    command += ["--workers", str(workers), "--tasks", str(options.tasks), "--submits", str(options.submits)]
    command += ["--latencies", str(options.latencies)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            answer = child.communicate()[0]
        finally:
            child.terminate()  # The child ends what it has started, also when this process is told to end.
    if child.returncode != 0:
        sys.exit(f"{name} with {workers} workers could not be measured")
    return json.loads(answer)


def medians(rounds):
    """The median of each figure; lowest and highest of the rate beside it."""
    figures = {name: statistics.median(each[name] for each in rounds) for name in rounds[0] if name != "latency_ms"}
    rates = [each["drain_per_s"] for each in rounds]
    figures["drain_per_s_range"] = [min(rates), max(rates)]
    if "latency_ms" in rounds[0]:
        of = {share: [each["latency_ms"][share] for each in rounds] for share in ("p50", "p99")}
        figures["latency_ms"] = {share: statistics.median(values) for share, values in of.items()}
    return rounded(figures)


def rounded(value):
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.3g}") if isinstance(value, float) else value


def machine():
    versions = {
        name: importlib.metadata.version(name) for name in ("everbeat", "celery", "dramatiq", "redis", "grpcio")
    }
    server = subprocess.run(["redis-server", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "packages": versions,
        "redis_server": server.split("v=")[1].split()[0],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", required=True, help="URL of a Redis server that may be emptied")
    parser.add_argument("--postgres", default="", help="URL of a PostgreSQL database")
    parser.add_argument("--systems", help="which systems, separated by commas")
    parser.add_argument("--system", help="measures this one once")
    parser.add_argument("--workers", default="1,4,8", help="numbers of worker processes")
    parser.add_argument(
        "--tasks", type=int, default=5000, help="tasks that are enqueued first and then performed; a multiple of 500"
    )
    parser.add_argument(
        "--submits", type=int, default=2000, help="tasks that are submitted one by one to workers that wait"
    )
    parser.add_argument("--latencies", type=int, default=200, help="tasks that the latency is measured with")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured; the medians are told")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    if options.tasks < 500 or options.tasks % 500:
        parser.error(f"--tasks {options.tasks}: give a multiple of 500, the size of a batch")
    if options.system:
        options.workers = int(options.workers)
        print(json.dumps(one(options)))
    else:
        everything(options)


main()
