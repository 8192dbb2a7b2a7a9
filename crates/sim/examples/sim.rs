//! Replays seeds: `cargo run -p everbeat-sim --example sim -- --seed 7 [--hole UnrenewedJudge]` tells one
//! history; `-- --seeds 1000 [--from N]` goes through many and prints their report.

use everbeat_model::Hole;
use everbeat_sim::{Options, Report, run_seed, tell_seed};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| arguments.iter().skip_while(|given| *given != name).nth(1).cloned();
    let number = |name: &str| value(name).and_then(|text| text.parse::<u64>().ok());
    let hole = value("--hole").and_then(|name| Hole::ALL.into_iter().find(|hole| format!("{hole:?}") == name));
    let options = Options { hole, ..Options::default() };
    if let Some(seed) = number("--seed") {
        let (history, report, violation) = tell_seed(seed, options);
        history.iter().for_each(|line| println!("{line}"));
        println!("{report}");
        if let Some(violation) = violation {
            println!("{violation}");
            std::process::exit(1);
        }
        return;
    }
    let from = number("--from").unwrap_or(0);
    let (mut total, mut broken) = (Report::default(), 0);
    for seed in from..from + number("--seeds").unwrap_or(100) {
        match run_seed(seed, options) {
            Ok(report) => total.add(&report),
            Err(violation) => {
                broken += 1;
                println!("seed {seed}: {} {}", violation.guarantee, violation.detail);
            }
        }
    }
    println!("{total}");
    println!("{}", serde_json::to_string(&total).unwrap_or_default());
    println!("{broken} broken");
}
