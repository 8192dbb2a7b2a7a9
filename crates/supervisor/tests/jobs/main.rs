//! Detached jobs with real processes: shims are started, killed, hung and examined.

mod harness;

mod cleaning;
mod containment;
mod control;
mod crashes;
mod ends;
mod failures;
mod hints;
mod isolation;
mod logs;
mod overview;
mod scale;
mod sentinels;
mod starting;
mod tenure;
