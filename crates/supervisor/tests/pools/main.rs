//! Pools with real processes: guardians and workers are started, killed, stopped and swept.

mod harness;

mod workers;
