//! What workers write, and what is written to them.

use crate::harness::*;
use everbeat_engine::pools::ProcessState;

#[test]
fn a_hundred_megabytes_without_an_end_of_line_are_cut_and_cost_nothing() {
    let host = Host::new("");
    let guardian = host.guard("p");
    let script = "head -c 100000000 /dev/zero | tr '\\0' x; printf '\\nend\\n'";
    let worker = host.spawn(&guardian, &shell(script));
    let line = host.line(&worker).unwrap();
    assert!(line.cut && line.text.len() == 16 << 10, "{}", line.text.len());
    let before = resident_kib();
    assert_eq!(host.text(&worker), "end");
    assert!(resident_kib() < before + 20_000);
}

#[test]
fn a_worker_whose_lines_nobody_takes_waits() {
    let host = Host::new("");
    let guardian = host.guard("p");
    let worker = host.spawn(&guardian, &shell("seq 1 100000; echo end"));
    let waits = || {
        let look = host.block_on("a look", worker.look())?;
        let reached = std::fs::read_to_string(format!("/proc/{}/wchan", worker.pid())).unwrap_or_default();
        // The shell waits for seq, and seq for somebody who reads.
        (look.state == ProcessState::Sleeping && !reached.is_empty()).then_some(())
    };
    eventually("a worker that waits", waits);
    let lines = std::iter::from_fn(|| host.line(&worker)).map(|line| line.text);
    let lines: Vec<String> = lines.collect();
    assert_eq!((lines.len(), lines.last().map(String::as_str)), (100_001, Some("end")));
    assert!((1..=100_000).all(|number| lines[number - 1] == number.to_string()));
}

#[test]
fn a_worker_that_speaks_lines_is_written_to_and_answers_at_length() {
    for mask in MODES {
        let host = Host::new(mask);
        let guardian = host.guard("p");
        let mut order = order(&["cat"]);
        order.lines = true;
        let worker = host.spawn(&guardian, &order);
        host.block_on("a write", worker.write(b"one")).unwrap();
        host.block_on("a write", worker.write(b"two\n")).unwrap();
        assert_eq!((host.text(&worker), host.text(&worker)), ("one".into(), "two".into()));
        let long = "x".repeat(1 << 20);
        let (wrote, line) =
            host.block_on("an answer", async { tokio::join!(worker.write(long.as_bytes()), worker.line()) });
        wrote.unwrap();
        let line = line.unwrap();
        assert!(!line.cut && line.text == long, "{mask:?}");
        let other = host.spawn(&guardian, &shell("sleep 1000"));
        assert!(host.block_on("a write", other.write(b"x")).is_err(), "it does not listen");
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
