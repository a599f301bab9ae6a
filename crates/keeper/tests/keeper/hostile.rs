//! Tests with compromised VMMs and servers.

use std::{fs, net::TcpListener};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::json;
use skep_harness::{process::is_zombie, wait_until};

use crate::{fake_server, fixture::Fixture};

/// The VMM sends its standard error over the monitor's socket, whose other end does not read, so the pipe outlives the
/// VMM.
pub(crate) fn a_vmm_that_keeps_its_stderr_open_is_ended() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch("base");
    keeper.send_word_without_answer(&vm, "park");
    wait_until("the VMM dies", || is_zombie(vm.pid));
    assert_eq!(keeper.request(&json!({"end": {"vm": vm.id}})), json!({"out_of_memory": false}));
    assert_eq!(keeper.list(), Vec::<String>::new());
    assert!(keeper.log().contains("these are my last words"), "{}", keeper.log());
    keeper.stop();
    fixture.assert_nothing_left();
}

/// VMs of the template, of any account, would be launched from the capture.
pub(crate) fn a_capture_does_not_take_the_place_of_a_template() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch("base");
    let prepare =
        |id: &str| keeper.try_request(&json!({"prepare_capture": {"vm": vm.id, "capture": id}})).unwrap();
    let refused = prepare("base");
    assert_eq!(refused["refused"], "internal", "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("which is that of a template"), "{refused}");
    // The control: an id that no template has.
    assert_eq!(prepare("unknown"), json!({}));
    keeper.stop();
    fixture.assert_nothing_left();
}

/// The build boots a guest of that size.
pub(crate) fn a_template_larger_than_the_machine_is_not_built() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let build = |field: &str, value: u64| {
        let mut size = json!({"memory_mb": 128, "vcpus": 1, "disk_mb": 1024});
        size[field] = value.into();
        keeper.request(&json!({"build": size}))
    };
    assert_eq!(build("vcpus", 1), json!({}), "the control");
    for (field, value) in [
        ("memory_mb", 1 << 40),
        ("memory_mb", 1),
        ("vcpus", 10_000),
        ("vcpus", 0),
        ("disk_mb", 1 << 40),
        ("disk_mb", 0),
    ] {
        assert_eq!(build(field, value)["refused"], "invalid_value", "{field} {value}");
    }
    keeper.stop();
    fixture.assert_nothing_left();
}

/// The keeper closes sockets that it receives, and the close of these blocks until the peer reads or resets.
pub(crate) fn sockets_that_a_server_passes_hold_up_nothing() {
    // Never accepts or reads, so written data stays in the connections.
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = peer.local_addr().unwrap().port();
    // Alone, and after more descriptors than the keeper receives per packet: the kernel closes the last ones then.
    for behind in [0, 100] {
        let fixture = Fixture::new();
        let keeper = fixture.keeper();
        let vm = keeper.launch_committed();
        // The server ends when the keeper stops reading, sometimes before it answers.
        keeper.try_request(&json!({"pass_lingering": {"port": port, "behind": behind}}));
        if behind > 0 {
            keeper.kill_server();
        }
        let list = json!({"list": {}});
        wait_until("the next server", || {
            keeper.try_request(&list).is_some_and(|list| list["vms"][0] == vm.id)
        });
        keeper.stop_by(Signal::INT);
        fixture.assert_nothing_left();
    }
    // Control: the close of such a socket blocks.
    let (sender, thread) = std::sync::mpsc::channel();
    let closing = std::thread::spawn(move || {
        let stream = fake_server::lingering(port);
        sender.send(rustix::thread::gettid()).unwrap();
        drop(stream);
    });
    let syscall = format!("/proc/self/task/{}/syscall", thread.recv().unwrap().as_raw_nonzero());
    // The system call number of `close`.
    let close = "3 ";
    wait_until("the close begins", || fs::read_to_string(&syscall).unwrap().starts_with(close));
    assert!(!closing.is_finished());
    drop(peer);
    closing.join().unwrap();
}

pub(crate) fn a_socket_that_outlives_its_server_holds_up_nothing() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch_committed();
    let left = keeper.request(&json!({"leave_socket_open": {}}))["pid"].as_u64().unwrap();
    let left = Pid::from_raw(i32::try_from(left).unwrap()).unwrap();
    let left = pidfd_open(left, PidfdFlags::empty()).unwrap();
    keeper.kill_server();
    let list = json!({"list": {}});
    wait_until("the next server", || keeper.try_request(&list).is_some_and(|list| list["vms"][0] == vm.id));
    keeper.stop_by(Signal::INT);
    fixture.assert_nothing_left();
    // It existed during the whole test.
    pidfd_send_signal(&left, Signal::KILL).unwrap();
}
