use std::sync::atomic::{AtomicU32, Ordering};

/// A name for an object of the machine, such as a control group. By the process id in it, `tests/stages/leftovers.py` finds
/// what a test that was killed did not remove.
pub fn unique_name(subject: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("skep-test-{}-{subject}-{number}", std::process::id())
}
