//! Replays seeds: `cargo run -p everbeat-sim --example sim -- --seed 7 [--hole UnrenewedJudge] [--focus
//! Absence]` tells one history; `-- --seeds 1000 [--from N] [--threads N]` goes through many and prints their report. It fails if any
//! guarantee broke.

use everbeat_model::{Hole, Planted};
use everbeat_sim::{Focus, Options, Report, run_seed, tell_seed};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match Asked::read(&arguments) {
        Ok(asked) => match asked.seed {
            Some(seed) => tell(seed, asked.options),
            None => go_through(&asked),
        },
        Err(why) => {
            eprintln!("sim: {why}");
            ExitCode::from(2)
        }
    }
}

struct Asked {
    seed: Option<u64>,
    from: u64,
    seeds: u64,
    threads: usize,
    options: Options,
}

impl Asked {
    fn read(arguments: &[String]) -> Result<Asked, String> {
        let mut asked = Asked { seed: None, from: 0, seeds: 100, threads: 1, options: Options::default() };
        for pair in arguments.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} needs a value", pair[0])) };
            let number = || value.parse::<u64>().map_err(|_| format!("{name} {value} is not a number"));
            match name.as_str() {
                "--seed" => asked.seed = Some(number()?),
                "--from" => asked.from = number()?,
                "--seeds" => asked.seeds = number()?,
                "--threads" => asked.threads = number()?.clamp(1, MOST_THREADS) as usize,
                "--hole" => asked.options.hole = Planted::one(named(value, &Hole::ALL)?),
                "--focus" => asked.options.focus = Some(named(value, &Focus::ALL)?),
                _ => {
                    return Err(format!(
                        "{name} is not known; there are --seed, --seeds, --from, --threads, --hole, --focus"
                    ));
                }
            }
        }
        Ok(asked)
    }
}

const MOST_THREADS: u64 = 256;

fn named<T: Copy + std::fmt::Debug>(name: &str, all: &[T]) -> Result<T, String> {
    let found = all.iter().find(|one| format!("{one:?}") == name);
    found.copied().ok_or_else(|| format!("{name} is none of {all:?}"))
}

fn tell(seed: u64, options: Options) -> ExitCode {
    let (history, report, violation) = tell_seed(seed, options);
    history.iter().for_each(|line| println!("{line}"));
    println!("{report}");
    match violation {
        None => ExitCode::SUCCESS,
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}

fn go_through(asked: &Asked) -> ExitCode {
    let (next, until) = (AtomicU64::new(asked.from), asked.from + asked.seeds);
    let (total, broken) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..asked.threads).map(|_| scope.spawn(|| take_seeds(&next, until, asked))).collect();
        let (mut total, mut broken) = (Report::default(), Vec::new());
        for thread in threads {
            match thread.join() {
                Ok((report, found)) => {
                    total.add(&report);
                    broken.extend(found);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        (total, broken)
    });
    println!("{total}");
    println!("{}", serde_json::to_string(&total).unwrap_or_default());
    println!("{} seeds from {} on, {} broken: {broken:?}", asked.seeds, asked.from, broken.len());
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Seeds one by one, so that no thread is left with the long ones.
fn take_seeds(next: &AtomicU64, until: u64, asked: &Asked) -> (Report, Vec<u64>) {
    let (mut total, mut broken) = (Report::default(), Vec::new());
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= until {
            return (total, broken);
        }
        if (seed - asked.from).is_multiple_of(TELL_EVERY) && seed > asked.from {
            eprintln!("{} of {} seeds", seed - asked.from, asked.seeds);
        }
        match run_seed(seed, asked.options) {
            Ok(report) => total.add(&report),
            Err(violation) => {
                broken.push(seed);
                println!("seed {seed}: {} {}", violation.guarantee, violation.detail);
                let focus = asked.options.focus.map(|focus| format!(" --focus {focus:?}")).unwrap_or_default();
                println!("   cargo run -p everbeat-sim --example sim -- --seed {seed}{focus}");
            }
        }
    }
}

const TELL_EVERY: u64 = 5_000;
