//! What can be seen of a worker from outside.

use crate::harness::*;
use everbeat_engine::pools::ProcessState;
use rustix::process::{Pid, Signal, kill_process, pidfd_send_signal};
use std::time::Duration;

#[test]
fn a_busy_a_sleeping_and_a_stopped_worker_are_told_apart() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("p");
        let look =
            |worker: &std::sync::Arc<dyn everbeat_engine::pools::WorkerProcess>| host.block_on("a look", worker.look());
        // What its children use counts as well.
        let busy = host.spawn(&guardian, &shell("sh -c 'while :; do :; done' & echo up; wait"));
        assert_eq!(host.text(&busy), "up");
        eventually("CPU time", || (look(&busy)?.cpu > Duration::from_millis(50)).then_some(()));
        let idle = host.spawn(&guardian, &shell("echo up; sleep 1000"));
        assert_eq!(host.text(&idle), "up");
        eventually("sleep", || (look(&idle)?.state == ProcessState::Sleeping).then_some(()));
        let seen = look(&idle).unwrap();
        assert!(seen.resident_bytes > 10_000 && seen.cpu < Duration::from_secs(1), "{mask:?}: {seen:?}");
        // It is our worker's number: it was not reaped.
        kill_process(Pid::from_raw(idle.pid() as i32).unwrap(), Signal::STOP).unwrap();
        eventually("a stop", || (look(&idle)?.state == ProcessState::Stopped).then_some(()));
        host.block_on("a signal", idle.signal(everbeat_engine::pools::WorkerSignal::Terminate)).unwrap();
        assert_eq!(host.exited(&idle).signal, Some(15), "the stopped hear it too");
        host.emptied(&idle);
        assert_eq!(look(&idle), None, "{mask:?}");
    }
}

#[test]
fn a_worker_tells_its_stacks_if_it_can_and_the_kernel_if_not() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("p");
        let script = "import faulthandler, os, signal, threading, time
f = open(os.environ['EVERBEAT_WORKER_DUMP_PATH'], 'w')
faulthandler.register(signal.SIGUSR1, file=f, all_threads=True, chain=False)
def stuck_here():
    print('up', flush=True)
    while True: time.sleep(1)
stuck_here()";
        let worker = host.spawn(&guardian, &order(&["python3", "-c", script]));
        assert_eq!(host.text(&worker), "up");
        for _ in 0..2 {
            let stacks = host.block_on("stacks", worker.stacks()).unwrap();
            assert!(stacks.starts_with("told by the worker:"), "{mask:?}: {stacks}");
            assert_eq!(stacks.matches("stuck_here").count(), 1, "{mask:?}: {stacks}");
        }
        // The signal would kill this one.
        let plain = host.spawn(&guardian, &shell("echo > $EVERBEAT_WORKER_DUMP_PATH; echo up; exec sleep 1000"));
        assert_eq!(host.text(&plain), "up");
        let stacks = host.block_on("stacks", plain.stacks()).unwrap();
        assert!(stacks.starts_with("told by the kernel:\nthread "), "{mask:?}: {stacks}");
        assert!(host.block_on("a look", plain.look()).is_some(), "{mask:?}: it lives");
    }
}

#[test]
fn the_end_of_a_worker_is_seen_although_its_guardian_hangs() {
    let host = Host::new("");
    let guardian = host.guard("p");
    let worker = host.spawn(&guardian, &shell("echo up; read x; exit 7"));
    assert_eq!(host.text(&worker), "up");
    let pidfd = crate::harness::guardian(&host.data_dir);
    let other = host.spawn(&guardian, &shell("trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done"));
    assert_eq!(host.text(&other), "up");
    pidfd_send_signal(&pidfd, Signal::STOP).unwrap();
    host.block_on("a signal", other.signal(everbeat_engine::pools::WorkerSignal::Terminate)).unwrap();
    assert_eq!(host.exited(&other).code, Some(7));
    pidfd_send_signal(&pidfd, Signal::CONT).unwrap();
    host.emptied(&other);
    assert_eq!(host.exited(&other).code, Some(7));
}
