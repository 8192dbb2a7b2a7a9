//! Detached jobs with real processes: shims are started, killed, hung and examined.

mod harness;
mod host;

mod cleaning;
mod containment;
mod control;
mod copies;
mod crashes;
mod destruction;
mod ends;
mod failures;
mod hints;
mod isolation;
mod logs;
mod missing;
mod overview;
mod past;
mod removal;
mod scale;
mod sentinels;
mod shortages;
mod starting;
mod starts;
mod stopping;
mod tenure;
