//! The same by another signal.

use rustix::process::Signal;

use super::ends_vms;

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_is_closed_ends_vms_by_its_signal_to_both_processes() {
    ends_vms(Signal::HUP).await;
}
