"""What a pool performs, and how its attempts are ended."""

import pytest
from trials import alive, kill, trial_pool

pytestmark = pytest.mark.real


@pytest.fixture
def server(trial):
    server = trial(trial_pool(size=4))
    server.ready(4)
    return server


def test_a_result_comes_back(server):
    ids = server.submit_many("reply", [{"value": number} for number in range(40)])
    assert [server.wait(each).unwrap() for each in ids] == list(range(40))


def test_an_exception_is_a_failure_with_its_traceback(server):
    run = server.wait(server.submit("raise_error", {"message": "no such page"}, policy={"max_attempts": 1}))
    assert run.state == "failed"
    assert run.error["message"] == "ValueError: no such page"
    attempt = server.attempts(run.id)[0]
    assert attempt["outcome"] == "failed"
    assert "raise ValueError(message)" in str(attempt["error"])
    assert "trial_tasks.py" in str(attempt["error"])


def test_progress_is_seen_while_a_run_goes_on(server):
    path = server.scratch / "attempts"
    run = server.submit("count", {"path": str(path), "to": 10_000, "pause": 0.01})
    first = server.began(run)["progress"]
    assert first["total"] == 10_000
    assert first["note"].startswith("at ")
    server.until(lambda: server.run(run)["progress"]["done"] > first["done"], "more progress")
    assert server.run(run)["checkpoint"] >= first["done"]
    server.client().runs.cancel(run)
    assert server.wait(run).state == "cancelled"


def test_a_checkpoint_reaches_the_next_attempt_after_a_kill(server):
    path = server.scratch / "attempts"
    run = server.submit("count", {"path": str(path), "to": 60, "pause": 0.02})
    server.until(lambda: (server.run(run)["checkpoint"] or 0) >= 10, "ten checkpoints")
    worker = server.worker_of(run)
    kill(worker["pid"])
    done = server.wait(run).unwrap()
    assert done["attempt"] == 2
    assert done["began_at"] >= 10
    assert server.outcomes(run) == ["lost", "succeeded"]
    verdict = server.verdict(run)
    assert (verdict["reason"], verdict["evidence"]["exit_signal"]) == ("worker_died", 9)
    assert verdict["evidence"]["worker_id"] == worker["id"]


def test_a_cancel_is_seen_by_the_task(server):
    run = server.submit("until_cancelled")
    server.began(run)
    worker = server.worker_of(run)
    server.client().runs.cancel(run)
    assert server.wait(run).state == "cancelled"
    assert server.outcomes(run) == ["cancelled"]
    assert server.worker(worker["id"])["pid"] == worker["pid"], "its worker lives on"


@pytest.mark.parametrize("how", ["spins", "sleeps"])
def test_a_stubborn_task_is_cancelled_by_the_end_of_its_worker(server, how):
    run = server.submit("stubborn", {"how": how}, policy={"cancel_grace": "300ms"})
    server.began(run)
    worker = server.worker_of(run)
    server.client().runs.cancel(run)
    ended = server.wait(run)
    assert (ended.state, server.outcomes(run)) == ("cancelled", ["cancelled"])
    assert server.verdict(run)["reason"] == "cancel_grace"
    server.until(lambda: not alive(worker["pid"]), "the end of its worker")
    assert len(server.ready(4)) == 4
    assert server.wait(server.submit("reply", {"value": 1})).unwrap() == 1


@pytest.mark.parametrize("how", ["spins", "sleeps"])
def test_a_task_past_its_deadline_is_timed_out_by_the_end_of_its_worker(server, how):
    policy = {"deadline": "500ms", "cancel_grace": "200ms", "max_attempts": 1}
    run = server.submit("stubborn", {"how": how}, policy=policy)
    worker = server.worker_of(run)
    ended = server.wait(run)
    assert (ended.state, server.outcomes(run)) == ("failed", ["timed_out"])
    assert server.verdict(run)["reason"] == "deadline"
    server.until(lambda: not alive(worker["pid"]), "the end of its worker")
    server.ready(4)


def test_never_more_is_claimed_than_workers_have_slots(trial):
    server = trial(trial_pool(size=4, slots=4))
    server.ready(4)
    for _ in range(20):
        runs = server.submit_many("work", [{"seconds": 0}] * 200)
        ended = [server.wait(run, 60) for run in runs]
        assert {(run.state, run.attempt) for run in ended} == {("succeeded", 1)}
