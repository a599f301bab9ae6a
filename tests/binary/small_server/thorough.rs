//! The most expensive request of each operation.

use super::{leave_it_alive, worst_case};
use crate::harness::Skep;

#[tokio::test(flavor = "multi_thread")]
async fn the_worst_requests_of_all_operations_leave_a_small_server_alive() {
    let skep = Skep::start().await;
    let worst = worst_case::prepare(&skep).await;
    leave_it_alive(skep, &worst).await;
}
