//! Detached jobs with real processes: shims are started, killed, hung and examined.

mod harness;

mod cleaning;
mod containment;
mod control;
mod crashes;
mod ends;
mod logs;
mod scale;
mod sentinels;
