//! Many seeds hold every guarantee, and did enough for that to mean something.

use everbeat_sim::{Focus, Options, Report, run_seed};

fn seeds() -> u64 {
    std::env::var("EVERBEAT_SIM_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2000)
}

/// One thread per core of the machines this is meant for.
const THREADS: u64 = 2;

fn through(first: u64, count: u64) -> Report {
    let mut total = Report::default();
    for seed in (first..count).step_by(THREADS as usize) {
        match run_seed(seed, Options::default()) {
            Ok(report) => total.add(&report),
            Err(violation) => panic!("{violation}"),
        }
    }
    total
}

#[test]
fn two_thousand_seeds_hold() {
    let count = seeds();
    let total = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|first| scope.spawn(move || through(first, count))).collect();
        let mut total = Report::default();
        for thread in threads {
            match thread.join() {
                Ok(report) => total.add(&report),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        total
    });
    println!("{total}");
    println!("{}", serde_json::to_string(&total).expect("a report is JSON"));
    let wanting = total.too_little();
    assert!(count < 500 || wanting.is_empty(), "a pass would mean little: {wanting:#?}");
}

#[test]
fn seeds_hold_where_hosts_stay_away_and_where_the_store_forgets() {
    for focus in Focus::ALL {
        for seed in 0..100 {
            if let Err(violation) = run_seed(seed, Options { focus: Some(focus), ..Options::default() }) {
                panic!("{focus:?}: {violation}");
            }
        }
    }
}

/// In these a worker was asked to go while it had no link, or computed before it had got its welcome.
#[test]
fn no_worker_is_ended_for_what_it_could_not_know() {
    for seed in [210, 1469, 6124, 6642] {
        if let Err(violation) = run_seed(seed, Options { focus: Some(Focus::Workers), ..Options::default() }) {
            panic!("{violation}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_history() {
    for seed in 0..40 {
        let once = run_seed(seed, Options::default()).expect("holds");
        // On another thread, whose own sources of chance differ.
        let again = std::thread::spawn(move || run_seed(seed, Options::default()).expect("holds"));
        assert_eq!(once, again.join().expect("no panic"), "seed {seed}");
    }
    let [one, other] = [1, 2].map(|seed| run_seed(seed, Options::default()).expect("holds").history);
    assert_ne!(one, other, "different seeds give different histories");
}
