//! The memory that the machine has left, and the guard that ends a VM before the kernel must choose a process.

mod available;
mod guard;

pub(crate) use available::{available_bytes, read};
pub(crate) use guard::{largest_excess, run as run_guard};
