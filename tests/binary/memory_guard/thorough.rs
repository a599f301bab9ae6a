//! VMs that use more memory than the machine has, without the guard.

use serde_json::json;

use super::{SmallMachine, VMS, fill_memory};

/// The control: it is the guard that ended them.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_guard_the_kernel_kills() {
    let machine = SmallMachine::new();
    let skep = machine.start("off").await;
    let vms = skep.boot(VMS).await;
    for message in fill_memory(&skep, &vms).await {
        assert_eq!(message, "the VM ended: out_of_memory (the kernel killed its VMM for memory)");
    }
    skep.post("/api/swarm/cleanup", &json!({})).await.ok(200);
    drop(skep);
}
