use crate::harness::*;
use everbeat_supervisor::job::Containment;
use everbeat_supervisor::job::protocol::ContainedBy;
use rustix::process::Signal;

/// A child, one in a session of its own, and a daemon that forked twice.
const FAMILY: &str = "sleep 1000 & setsid sleep 1001 & \
    sh -c 'setsid sh -c \"sleep 1002 & sleep 1003\" & exit' & \
    (trap '' TERM HUP INT; sleep 1004; sleep 1005) & echo up > up; wait";

fn family(containment: Containment) -> Job {
    let job = Job::with(&["/bin/sh", "-c", FAMILY], |spec| spec.containment = containment).start();
    job.await_file("up");
    eventually("the family", || (job.processes().len() >= 6).then_some(()));
    job
}

#[test]
fn killing_the_shim_kills_the_command_and_fencing_leaves_nobody() {
    for containment in [Containment::Auto, Containment::Tree] {
        let job = family(containment);
        job.signal_shim(Signal::KILL);
        eventually("the lock", || matches!(job.examine(), Finding::Gone).then_some(()));
        assert!(matches!(job.fence(), Fenced::Lost));
        assert_eq!(job.processes(), [0; 0], "{containment:?}");
        assert!(matches!(job.judge(), Fenced::Lost), "twice is harmless");
    }
}

#[test]
fn the_command_itself_dies_with_its_shim_before_anybody_fences() {
    let job = Job::with(&["sleep", "1000"], |spec| spec.containment = Containment::Tree).start();
    eventually("the command", || (!job.processes().is_empty()).then_some(()));
    job.signal_shim(Signal::KILL);
    eventually("its death", || job.processes().is_empty().then_some(()));
}

#[test]
fn what_a_command_leaves_behind_ends_with_it() {
    for containment in [Containment::Auto, Containment::Tree] {
        let script = FAMILY.replace("wait", "sleep 0.2; exit 9");
        let job = Job::with(&["/bin/sh", "-c", &script], |spec| spec.containment = containment).start();
        assert_eq!(job.exited().exit_code, Some(9));
        eventually("an empty house", || job.processes().is_empty().then_some(()));
        job.client().ack().unwrap();
        job.await_no_shim();
    }
}

#[test]
fn stopping_reaches_everybody_and_what_will_not_go_is_killed() {
    for containment in [Containment::Auto, Containment::Tree] {
        let job = family(containment);
        job.client().stop(StopReason::Cancelled, Some(std::time::Duration::from_millis(300))).unwrap();
        let record = job.exited();
        assert!(record.exit_signal.is_some() || record.exit_code.is_some());
        eventually("an empty house", || job.processes().is_empty().then_some(()));
    }
}

#[test]
fn a_daemon_in_its_own_session_is_asked_before_it_is_killed() {
    for containment in [Containment::Auto, Containment::Tree] {
        // Its own trap first: it must be there when the daemon says that it is up.
        let script = "trap 'while [ ! -s asked ]; do sleep 0.02; done; exit 5' TERM; \
            setsid sh -c 'trap \"echo asked > asked; exit\" TERM; echo up > up; while :; do sleep 0.05; done' & \
            while :; do sleep 0.05; done";
        let job = Job::with(&["/bin/sh", "-c", script], |spec| spec.containment = containment).start();
        job.await_file("up");
        job.client().stop(StopReason::Cancelled, Some(LONG)).unwrap();
        assert_eq!(job.exited().exit_code, Some(5));
        assert_eq!(job.await_file("asked"), "asked\n");
    }
}

#[test]
fn a_cgroup_is_used_where_there_is_one_and_goes_with_the_job() {
    let job = Job::new(&["sleep", "1000"]).start();
    let hello = job.hello();
    println!("contained by {:?}", hello.contained_by);
    let cgroups = || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap_or_default().to_owned();
        let at = mount.split(' ').nth(4).unwrap_or("/nowhere").to_owned();
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default().to_owned();
        let entries = std::fs::read_dir(std::path::Path::new(&at).join(own)).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().contains(&job.spec.job_id)).count()
    };
    if hello.contained_by == ContainedBy::Cgroup {
        assert_eq!(cgroups(), 1);
        job.client().stop(StopReason::Cancelled, None).unwrap();
        job.exited();
        job.client().ack().unwrap();
        job.await_no_shim();
        assert_eq!(cgroups(), 0);
    }
}

#[test]
fn a_hung_shim_is_told_from_a_living_one_and_can_be_ended() {
    for containment in [Containment::Auto, Containment::Tree] {
        let job = family(containment);
        job.signal_shim(Signal::STOP);
        let within = std::time::Duration::from_millis(300);
        let finding = everbeat_supervisor::job::examine_within(&job.folder, &job.identity(), 0, within);
        assert!(matches!(finding, Finding::Hung), "{finding:?}");
        assert!(matches!(job.fence(), Fenced::StillHeld));
        job.kill();
        eventually("the lock", || matches!(job.fence(), Fenced::Lost).then_some(()));
        assert_eq!(job.processes(), [0; 0]);
    }
}

#[test]
fn a_storm_of_forks_is_ended() {
    const STORM: &str = "echo up > up; storm() { while :; do (setsid sleep 0.05 &) ; (sleep 0.05 &) ; done; }; \
        trap '' TERM; storm & storm & setsid sh -c 'while :; do (sleep 0.03 &); done' & wait";
    for containment in [Containment::Auto, Containment::Tree] {
        let job = Job::with(&["/bin/sh", "-c", STORM], |spec| spec.containment = containment).start();
        job.await_file("up");
        job.client().stop(StopReason::Cancelled, Some(std::time::Duration::from_millis(100))).unwrap();
        assert_eq!(job.exited().exit_signal, Some(9), "{containment:?}");
        eventually("calm", || (job.hello().state == everbeat_supervisor::job::protocol::State::Exited).then_some(()));
        assert_eq!(job.processes(), [0; 0], "{containment:?}");
    }
}
