//! The memory that the machine has left, its admission for copies and loads, and the guard that ends a VM before the
//! kernel chooses a process.

mod admissions;
mod available;
mod deltas;
mod guard;

pub use admissions::MemoryAdmission;
pub(crate) use admissions::MemoryAdmissions;
pub(crate) use available::{available_bytes, read};
pub(crate) use deltas::{MappedDelta, deltas_bytes};
pub(crate) use guard::{largest_excess, run as run_guard};
