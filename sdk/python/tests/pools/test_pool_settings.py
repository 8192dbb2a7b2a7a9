"""Every setting of a pool does what it says."""

import signal
import sys
import time

import pytest
from trials import APPS, alive, kill, trial_pool

pytestmark = pytest.mark.real


def test_size_slots_queues_env_and_cwd(trial, tmp_path):
    server = trial(
        trial_pool(
            size=2, slots=3, env={"TRIAL_A": "1", "PYTHONPATH": f"{APPS}:{APPS.parents[2] / 'src'}"}, cwd=str(tmp_path)
        ),
        trial_pool(name="slow", size=1, queues=["slow", "slower"]),
        env={"TRIAL_OF_THE_SERVER": "not for workers"},
    )
    server.ready(2)
    server.ready(1, "slow")
    path = server.scratch / "go"
    runs = server.submit_many("wait_for", [{"path": str(path)}] * 10)
    server.until(lambda: server.pool()["busy"] == 6, "6 attempts at once")
    time.sleep(0.3)  # Nothing tells that nobody takes more: that there are six for so long is the test.
    assert sorted(worker["running"] for worker in server.workers("trial")) == [3, 3]
    assert server.pool("slow")["busy"] == 0
    path.touch()
    assert len({server.wait(run).unwrap() for run in runs}) == 2
    told = server.wait(server.submit("where")).unwrap()
    assert (told["cwd"], told["env"]["TRIAL_A"], told["secrets"]) == (str(tmp_path), "1", [])
    assert "TRIAL_OF_THE_SERVER" not in told["env"]
    assert told["home"]
    assert (told["env"]["EVERBEAT_POOL"], told["env"]["EVERBEAT_SLOTS"]) == ("trial", "3")
    for queue in ("slow", "slower"):
        told = server.wait(server.submit("where", queue=queue)).unwrap()
        assert told["env"]["EVERBEAT_POOL"] == "slow"
    nobodys = server.submit("where", queue="nobodys")
    time.sleep(0.3)  # Nothing tells that nobody takes it: that it waits for so long is the test.
    assert server.run(nobodys)["state"] == "ready"


def test_a_relative_cwd_counts_from_the_configuration(trial):
    pool = trial_pool(size=1, cwd="here")
    pool["command"][-1] = f"{APPS / 'trial_tasks.py'}:app"
    server = trial(pool)
    # The folder is missing at first.
    server.until(lambda: server.pool()["state"] == "degraded", "trouble")
    assert "cannot be started" in server.pool()["degraded_reason"]
    (server.scratch / "here").mkdir()
    server.cli("pool", "restart", "trial")
    server.ready(1)
    assert server.wait(server.submit("where")).unwrap()["cwd"] == str(server.scratch / "here")
    server.until(lambda: server.pool()["state"] == "ready", "the end of the trouble")


def test_workers_are_replaced_by_age_and_by_runs_and_no_run_is_lost(trial):
    server = trial(trial_pool(size=2, max_age="1500ms"), trial_pool(name="few", size=2, queues=["few"], max_runs=3))
    old = {worker["id"] for worker in server.ready(2)}
    server.ready(2, "few")
    runs = server.submit_many("work", [{"seconds": 0.05}] * 30, queue="few")
    pids = [server.wait(run).unwrap() for run in runs]
    assert all(server.outcomes(run) == ["succeeded"] for run in runs)
    assert len(set(pids)) >= 3
    server.until(lambda: all(worker["finished"] < 3 for worker in server.workers("few")), "fresh workers")
    server.until(lambda: not old & {worker["id"] for worker in server.workers("trial")}, "younger workers")
    assert (server.pool()["restarts"], server.verdicts()) == (0, []), "to be replaced is no fault"


def test_a_worker_is_given_no_more_attempts_than_max_runs(trial):
    server = trial(trial_pool(size=2, slots=2, max_runs=3))
    server.ready(2)
    runs = server.submit_many("work", [{"seconds": 0.02}] * 24)
    pids = [server.wait(run).unwrap() for run in runs]
    counts = {pid: pids.count(pid) for pid in pids}
    assert max(counts.values()) <= 3, counts
    assert all(server.outcomes(run) == ["succeeded"] for run in runs)


def test_a_worker_whose_last_attempt_is_long_is_replaced_meanwhile(trial):
    server = trial(trial_pool(size=1, slots=2, max_runs=2))
    (worker,) = server.ready(1)
    path = server.scratch / "go"
    long = server.submit("wait_for", {"path": str(path)})
    server.began(long)
    assert server.wait(server.submit("where")).unwrap()["pid"] == worker["pid"]
    assert server.wait(server.submit("where")).unwrap()["pid"] != worker["pid"]
    path.touch()
    assert server.wait(long).unwrap() == worker["pid"]


def test_a_command_that_is_not_there_degrades_the_pool(trial):
    server = trial(trial_pool(command=["/does/not/exist"]))
    degraded(server, "/does/not/exist", "No such file")


def test_a_command_that_exits_at_once_degrades_the_pool_with_its_last_words(trial):
    server = trial(trial_pool(command=["sh", "-c", "echo no GPU here >&2; exit 7"]))
    degraded(server, "exited with code 7", "no GPU here")


def test_an_app_that_cannot_be_imported_degrades_the_pool_with_its_last_words(trial):
    server = trial(trial_pool(command=[sys.executable, "-m", "everbeat.worker", "no_such_module:app"]))
    degraded(server, "exited with code 2", "no_such_module")


def test_a_command_that_never_says_hello_degrades_the_pool(trial):
    server = trial(trial_pool(command=["sh", "-c", "echo waiting >&2; exec sleep 1000"], size=1, startup_grace="300ms"))
    degraded(server, "did not say hello within 300ms", "waiting")


def test_workers_that_take_too_much_memory_at_once_degrade_the_pool(trial):
    server = trial(trial_pool(max_memory="5MiB", size=1))
    degraded(server, "more than max_memory")


def degraded(server, *parts):
    server.until(lambda: server.pool()["state"] == "degraded", "a degraded pool")
    reason = server.pool()["degraded_reason"]
    assert all(part in reason for part in parts), reason
    checks = server.ask("/readyz")
    assert "degraded" in str(checks)
    shown = server.cli_raw("show", "trial").stdout
    assert parts[0] in shown, shown
    # Starts become rare, and nothing turns in circles.
    cpu, at = server.cpu(), time.monotonic()
    time.sleep(2)  # What is measured is measured for so long.
    assert (server.cpu() - cpu) / (time.monotonic() - at) < 0.3
    starts = server.log.count("process.started event=")
    assert starts < 60


def test_a_pool_that_is_mended_is_well_again(trial):
    flag = "test -e ../mended || { echo broken >&2; exit 1; }; exec"
    command = ["sh", "-c", f'{flag} "$0" "$@"', sys.executable, "-m", "everbeat.worker", f"{APPS}/trial_tasks.py:app"]
    server = trial(trial_pool(size=2, command=command, cwd="data"))
    server.until(lambda: server.pool()["state"] == "degraded", "a degraded pool")
    (server.scratch / "mended").touch()
    server.cli("pool", "restart", "trial")
    assert server.wait(server.submit("reply", {"value": 1})).unwrap() == 1
    server.until(lambda: server.pool()["state"] == "ready", "a pool that is well")
    assert server.pool()["degraded_reason"] is None
    server.ready(2)


def test_startup_grace_is_enough_for_a_slow_start(trial):
    slow = ["sh", "-c", 'sleep 1; exec "$0" "$@"', sys.executable, "-m", "everbeat.worker", "trial_tasks:app"]
    server = trial(trial_pool(size=1, command=slow, startup_grace="20s"))
    (worker,) = server.until(server.workers, "a worker")
    assert (worker["state"], worker["class"]) == ("starting", "starting")
    server.ready(1)
    assert server.pool()["restarts"] == 0


def test_without_heartbeat_nobody_is_judged(trial):
    server = trial(trial_pool(size=1, heartbeat=False, worker_ttl="2s"))
    server.ready(1)
    run = server.submit("hold_gil_idle", {"seconds": 4})
    assert server.wait(run).succeeded
    (worker,) = server.workers()
    # One, to see that its welcome has arrived.
    assert (worker["pings"], worker["restarts"]) == (1, 0)
    run = server.submit("stubborn", {"how": "sleeps"}, policy={"on_lost": "fail"})
    server.began(run)
    kill(worker["pid"])
    assert server.verdict(run)["reason"] == "worker_died", "death is seen all the same"


ISOLATION = {"replica": {"heartbeat_timeout": "3s"}}


def test_without_heartbeat_work_that_must_stop_when_isolated_is_vouched_for(trial):
    server = trial(trial_pool(heartbeat=False, size=1), config=ISOLATION)
    (worker,) = server.ready(1)
    path = server.scratch / "go"
    run = server.submit("wait_for", {"path": str(path)}, policy={"when_isolated": "stop", "max_attempts": 1})
    server.began(run)
    # Longer than its server vouches for it at once.
    server.until(lambda: server.worker(worker["id"])["pings"] > 20, "pings while it performs such work")
    path.touch()
    assert server.wait(run).unwrap() == worker["pid"]
    assert server.outcomes(run) == ["succeeded"]
    pings = server.worker(worker["id"])["pings"]
    time.sleep(1)
    assert server.worker(worker["id"])["pings"] <= pings + 1, "and none when it is done"


def test_without_heartbeat_work_that_must_stop_when_isolated_stops_when_its_server_is_frozen(trial, tmp_path):
    server = trial(trial_pool(heartbeat=False, size=1), config=ISOLATION)
    (worker,) = server.ready(1)
    path = tmp_path / "scribbled"
    policy = {"when_isolated": "stop", "max_attempts": 1, "on_lost": "fail"}
    run = server.submit("scribble", {"path": str(path)}, policy=policy)
    server.until(path.exists, "the first dot")
    assert server.worker_of(run)["id"] == worker["id"]
    server.signal(signal.SIGSTOP)
    server.until(lambda: not grows(path), "the end of the scribbling", 10)
    server.signal(signal.SIGCONT)
    assert server.wait(run).state == "failed"


def grows(path, seconds=0.5):
    before = path.stat().st_size
    time.sleep(seconds)
    return path.stat().st_size > before


def test_workers_that_speak_lines_refuse_work_that_must_stop_when_isolated(trial):
    server = trial(trial_pool(name="lines", command=["./lines.sh"], protocol="lines", size=1))
    server.ready(1, "lines")
    run = server.wait(server.submit("lines", policy={"when_isolated": "stop"}))
    assert (run.state, server.outcomes(run.id)) == ("failed", ["failed"])
    assert all(part in str(run.error) for part in ("when_isolated", "lines", "continue")), run.error


def test_independent_workers_are_not_ended_for_silence(trial):
    server = trial(trial_pool(size=1, dependent=False, worker_ttl="2s"))
    server.ready(1)
    run = server.submit("hold_gil_idle", {"seconds": 5})
    worker = server.worker_of(run)
    server.until(lambda: server.worker(worker["id"])["class"] == "hung", "the class")
    assert server.wait(run).succeeded
    server.until(lambda: server.worker(worker["id"])["class"] == "alive", "the class")
    assert server.pool()["restarts"] == 0


@pytest.mark.parametrize(("mask", "starts"), [("cgroup", True), ("cgroup,namespace", False)])
def test_strict_containment_starts_only_where_nothing_escapes(trial, mask, starts):
    server = trial(trial_pool(size=1, containment="strict"), env={"EVERBEAT_POOL_MASK": mask})
    if starts:
        server.ready(1)
        assert server.pool()["contained"]
        return
    server.until(lambda: server.pool()["state"] in ("degraded", "ready"), "a pool that does not start")
    if server.pool()["containment"] == "cgroup":
        pytest.skip("only a debug binary can be told what the machine does not have")
    assert "strict" in server.pool()["degraded_reason"]
    time.sleep(1.5)  # Nothing tells that none is started: that there is none for so long is the test.
    assert not server.workers()


def test_stop_grace_lets_work_finish_when_the_server_ends(trial, tmp_path):
    server = trial(trial_pool(size=1, stop_grace="10s"), config={"replica": {"drain_grace": "10s"}})
    server.ready(1)
    path = tmp_path / "done"
    run = server.submit("work", {"seconds": 1.5, "path": str(path)})
    server.worker_of(run)
    server.stop()
    assert path.read_text().split() == [run]


def test_a_stubborn_task_does_not_hold_up_the_end_of_the_server(trial):
    server = trial(trial_pool(size=1, stop_grace="500ms"))
    run = server.submit("stubborn", {"how": "spins"})
    pid = server.worker_of(run)["pid"]
    at = time.monotonic()
    server.stop()
    assert time.monotonic() - at < 10
    assert not alive(pid)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_script_speaks_lines(trial, tmp_path, slots):
    go = tmp_path / "go"
    pool = trial_pool(
        name="resize", command=["./lines.sh"], protocol="lines", size=2, slots=slots, env={"TRIAL_GO": str(go)}
    )
    server = trial(pool)
    server.ready(2, "resize")
    told = server.wait(server.submit("resize", {"width": 80})).unwrap()
    assert told["in"] == str(APPS)
    failed = server.wait(server.submit("resize", "fails"))
    assert (failed.state, failed.error["message"], failed.attempt) == ("failed", "no such width", 1)
    assert server.wait(server.submit("resize", "odd")).unwrap() == "odd"
    assert "not an answer: this is no answer" in server.log
    run = server.submit("resize", "steps")
    assert server.began(run)["progress"] == {"done": 1, "total": 2, "note": "half"}
    server.until(lambda: server.run(run)["checkpoint"] == {"at": 1}, "the checkpoint")
    go.touch()
    assert server.wait(run).unwrap() == {"stepped": True}
    dead = server.wait(server.submit("resize", "dies", policy={"on_lost": "fail"}))
    assert dead.state == "failed"
    assert server.verdict(dead.id)["evidence"]["last_lines"][-1] == "about to die"
    server.ready(2, "resize")
    assert {worker["class"] for worker in server.workers()} == {"alive"}
    assert server.wait(server.submit("resize", {"width": 80})).succeeded


def test_a_pool_of_lines_performs_the_tasks_that_its_settings_name(trial):
    server = trial(trial_pool(name="lines", command=["./lines.sh"], protocol="lines", tasks=["shrink", "grow"], size=1))
    server.ready(1, "lines")
    assert server.wait(server.submit("shrink", 1)).succeeded
    assert server.wait(server.submit("grow", 1)).succeeded


@pytest.mark.parametrize("how", ["of Python", "of lines"])
def test_a_task_of_a_server_cannot_be_one_of_a_pool(trial, tmp_path, how):
    if how == "of lines":
        with pytest.raises(
            RuntimeError, match=r'tasks of the pool "echo": is one that every server performs by itself'
        ):
            trial(trial_pool(name="echo", command=["cat"], protocol="lines"))
        return
    app = "import everbeat\napp = everbeat.App()\n@app.task\ndef echo(ctx, value):\n    return [value]\n"
    (tmp_path / "mine.py").write_text(app)
    server = trial(trial_pool(command=[sys.executable, "-m", "everbeat.worker", "mine:app"], cwd=str(tmp_path)))
    server.until(lambda: server.pool()["state"] == "degraded", "a pool that cannot serve")
    assert (
        'task "echo" is one that every server performs by itself: give it another name'
        in server.pool()["degraded_reason"]
    )
    (tmp_path / "mine.py").write_text(app.replace("@app.task", '@app.task("my_echo")'))
    server.ready(2)
    assert server.wait(server.submit("my_echo", {"value": 1})).unwrap() == [1]
