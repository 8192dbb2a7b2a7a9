"""What Prometheus is told of workers: heartbeats, latency, restarts, cleanup and orphans."""

import os
import signal

import pytest
from trials import Figures, alive, kill, trial_pool

pytestmark = pytest.mark.real

RESTARTS = 'everbeat_worker_restarts_total{pool="trial"}'


def test_pings_pongs_and_round_trips_are_counted(trial):
    server = trial(trial_pool())
    server.ready(2)
    seen = server.until(lambda: (seen := Figures(server)).worker("pongs_total") >= 6 and seen, "pongs")
    assert seen.worker("pings_total") >= seen.worker("pongs_total")
    assert seen.worker("round_trip_seconds_count") >= 6
    assert seen.worker("round_trip_seconds_sum") > 0
    assert seen.worker("starts_total") == seen.worker("startup_seconds_count") == 2
    assert (seen[RESTARTS], seen.worker("orphans_total"), seen.worker("cleanup_seconds_count")) == (0, 0, 0)
    assert seen["everbeat_watchdog_activations_total"] == 0


def test_pings_that_are_not_answered_in_time_are_counted_as_missed(trial):
    server = trial(trial_pool(size=1))
    (worker,) = server.ready(1)
    before = Figures(server)
    os.kill(worker["pid"], signal.SIGSTOP)
    try:
        # Of the one ping that it owes each further interval is counted: no second one is sent meanwhile.
        missed = before.worker("pings_missed_total") + 4
        seen = server.until(lambda: (seen := Figures(server)).worker("pings_missed_total") >= missed and seen, "misses")
        assert seen.worker("pings_total") <= before.worker("pings_total") + 2
    finally:
        os.kill(worker["pid"], signal.SIGCONT)


def test_a_restart_and_what_it_cleaned_up_are_counted(trial):
    server = trial(trial_pool(size=1))
    (worker,) = server.ready(1)
    kill(worker["pid"])
    server.until(lambda: Figures(server).worker("cleanup_seconds_count") == 1, "the cleanup")
    seen = Figures(server)
    assert (seen[RESTARTS], seen.worker('exits_total{reason="signal"}')) == (1, 1)
    server.ready(1)
    # A worker that people replace has not failed.
    server.ask("pools/trial/restart", {})
    server.until(lambda: Figures(server).worker("cleanup_seconds_count") == 2, "the second cleanup")
    assert Figures(server)[RESTARTS] == 1


def test_the_death_of_a_server_is_counted_by_the_next_one(trial):
    server = trial(trial_pool())
    server.ready(2)
    workers, guardians = [worker["pid"] for worker in server.workers()], server.guardians()
    server.signal(signal.SIGKILL)
    # The guardian goes last, when it has told what it saw.
    server.until(lambda: not any(map(alive, workers + guardians)), "the end of all")
    server.kill()
    server.start()
    server.ready(2)
    seen = Figures(server)
    assert seen["everbeat_watchdog_activations_total"] == 1
    assert seen.worker("orphans_total") == 0
    assert seen["everbeat_uptime_seconds"] < 60
