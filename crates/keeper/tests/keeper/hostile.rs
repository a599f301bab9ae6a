//! VMMs and servers that were taken over by what they run, or by what they read.

use serde_json::json;

use crate::fixture::{self, Fixture, wait_until};

/// The VMM sends its standard error over the monitor's socket, whose other end does not read: the pipe outlives the VMM.
pub(crate) fn a_vmm_that_keeps_its_stderr_open_is_ended() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch("base");
    keeper.tell(&vm, "park");
    wait_until("the VMM dies", || fixture::is_zombie(vm.pid));
    assert_eq!(keeper.ask(&json!({"end": {"vm": vm.id}})), json!({"out_of_memory": false}));
    assert_eq!(keeper.list(), Vec::<String>::new());
    assert!(keeper.log().contains("these are my last words"), "{}", keeper.log());
    keeper.stop();
    fixture.assert_nothing_left();
}
