//! The port to kernel locks, by which replicas of one host see at once that another is gone.

use everbeat_model::ReplicaId;
use std::any::Any;

/// Kernel locks that replicas of one host hold for as long as they live: a free one is proof of death.
pub trait Locks: Send + Sync + 'static {
    /// Takes the lock of a replica that begins.
    fn hold(&self, replica: ReplicaId) -> std::io::Result<LockGuard>;

    /// Whether the lock of another replica on this host is free. `None`: no such lock is known here,
    /// which proves nothing.
    fn released(&self, replica: ReplicaId) -> Option<bool>;
}

/// Holds a lock until it is dropped.
pub struct LockGuard(#[expect(dead_code, reason = "held, not read")] Box<dyn Any + Send + Sync>);

impl LockGuard {
    pub fn new(held: impl Any + Send + Sync) -> LockGuard {
        LockGuard(Box::new(held))
    }
}
