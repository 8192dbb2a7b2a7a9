use crate::harness::*;
use everbeat_engine::Stream;
use everbeat_supervisor::job::logs::{read_from, tail};

#[test]
fn a_follower_sees_every_line_across_rotations() {
    const LINES: usize = 20_000;
    /// Less than one of the two files holds, so that a follower who is never further behind loses nothing.
    const BLOCK: usize = 2_000;
    // It waits for its follower after every block: nobody is promised what was rotated away before it was read.
    let script = format!(
        "n=0; while [ $n -lt {LINES} ]; do seq -f 'line %06.0f' $((n + 1)) $((n + {BLOCK})); n=$((n + {BLOCK})); \
         while [ \"$(cat read 2>/dev/null)\" != $n ]; do sleep 0.005; done; done; echo oops >&2"
    );
    let job = Job::with(&["/bin/sh", "-c", &script], |spec| spec.log_limit_bytes = 128 << 10).start();
    let (mut at, mut seen, mut read) = (0, Vec::new(), 0);
    eventually("the last line", || {
        let ended = matches!(job.examine(), Finding::Exited(_));
        let chunk = read_from(&job.folder, Stream::Stdout, at, 1 << 20).unwrap();
        assert_eq!(chunk.offset, at, "a gap");
        at = chunk.next();
        seen.extend_from_slice(&chunk.bytes);
        let lines = seen.len() / "line 000000\n".len();
        if lines > read && lines.is_multiple_of(BLOCK) {
            read = lines;
            std::fs::write(job.workspace("read"), read.to_string()).unwrap();
        }
        (ended && chunk.bytes.is_empty()).then_some(())
    });
    let expected: String = (1..=LINES).map(|n| format!("line {n:06}\n")).collect();
    assert!(seen == expected.as_bytes(), "{} bytes of {}", seen.len(), expected.len());
    let sizes = ["stdout.log", "stdout.log.1"].map(|name| job.folder.path().join(name).metadata().unwrap().len());
    assert!(sizes.iter().sum::<u64>() <= 128 << 10, "{sizes:?}");
    let last = tail(&job.folder, Stream::Stdout, 3).unwrap();
    assert_eq!(String::from_utf8(last.bytes).unwrap(), "line 019998\nline 019999\nline 020000\n");
    assert_eq!(tail(&job.folder, Stream::Stderr, 10).unwrap().bytes, b"oops\n");
    assert_eq!(tail(&job.folder, Stream::Stdout, 0).unwrap().bytes, b"");
}

#[test]
fn output_is_complete_when_the_exit_is_known() {
    let job = Job::shell("head -c 3000000 /dev/zero | tr '\\0' x; echo end >&2; exit 2").start();
    let record = job.exited();
    assert_eq!((record.exit_code, record.output_bytes, record.dropped_bytes), (Some(2), 3_000_004, 0));
    assert_eq!(job.folder.path().join("stdout.log").metadata().unwrap().len(), 3_000_000);
}

#[test]
fn what_the_command_wrote_last_is_counted_also_where_it_had_to_be_dropped() {
    let job = Job::shell("head -c 50000 /dev/zero; printf 12345 >&2");
    // No log can be begun: its index cannot be written.
    std::fs::create_dir(job.folder.path().join(".stdout.log.index")).unwrap();
    let job = job.start();
    let record = job.exited();
    assert_eq!((record.output_bytes, record.dropped_bytes, record.stdout_dropped_bytes), (5, 50_000, 50_000));
    let job = Job::shell("head -c 50000 /dev/zero; printf 12345 >&2");
    std::fs::create_dir(job.folder.path().join(".stderr.log.index")).unwrap();
    let record = job.start().exited();
    assert_eq!((record.output_bytes, record.dropped_bytes, record.stdout_dropped_bytes), (50_000, 5, 0));
}

#[test]
fn a_writer_that_the_command_left_behind_does_not_hold_up_its_record() {
    let job = Job::with(&["/bin/sh", "-c", "yes & exit 3"], |spec| spec.log_limit_bytes = 64 << 10).start();
    let record = job.exited();
    assert_eq!(record.exit_code, Some(3));
    eventually("silence", || job.processes().is_empty().then_some(()));
}
