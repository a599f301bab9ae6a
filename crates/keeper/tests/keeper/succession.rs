//! VMs that outlive their server and their keeper, and those that do not.

use std::{fs, path::Path, process::Command};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use skep_api::VmId;
use skep_harness::{
    process::{is_gone, is_zombie},
    wait_until,
};

use crate::fixture::{self, Fixture};

pub(crate) fn uncommitted_vms_end_with_their_server() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch("base");
    let first = keeper.server_pid();
    keeper.kill_server();
    // The connection waits in the listener's backlog until the next server accepts it.
    assert_ne!(keeper.server_pid(), first);
    assert!(!Path::new(&format!("/proc/{}", vm.pid)).exists());
    assert_eq!(keeper.list(), Vec::<String>::new());
    keeper.launch("base");
    keeper.stop();
    fixture.assert_nothing_left();
}

pub(crate) fn committed_vms_outlive_their_server() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let (vm, nobodys) = (keeper.launch_committed(), keeper.launch("base"));
    assert_eq!(keeper.send_word(&vm, "hello")["answer"], "hello");
    keeper.kill_server();
    keeper.assert_adopted(&vm);
    assert!(is_gone(nobodys.pid));
    assert_eq!(keeper.request(&json!({"list": {}})), json!({"vms": [vm.id], "committed": 1}));
    // A second time, with a VM that died meanwhile.
    keeper.send_word_without_answer(&vm, "die");
    wait_until("the VMM dies", || is_zombie(vm.pid));
    keeper.kill_server();
    assert_eq!(keeper.request(&json!({"attach": {"vm": vm.id}}))["refused"], "vm_ended");
    assert_eq!(keeper.request(&json!({"end": {"vm": vm.id}})), json!({"out_of_memory": false}));
    assert_eq!(keeper.request(&json!({"commit": {"vm": vm.id}}))["refused"], "unknown_vm");
    keeper.stop();
    fixture.assert_nothing_left();
}

pub(crate) fn vms_outlive_a_keeper_that_is_killed() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let (vm, nobodys) = (keeper.launch_committed(), keeper.launch("base"));
    keeper.crash();
    let keeper = fixture.keeper();
    keeper.assert_adopted(&vm);
    wait_until("the end of what was nobody's", || is_gone(nobodys.pid));
    assert_eq!(keeper.list(), [vm.id.as_str()]);
    assert!(!fixture.sockets().join(&nobodys.id).exists() && fixture.groups_of(&nobodys.id).is_empty());
    // Resources in use are not assigned again.
    let new = keeper.launch("base");
    assert_ne!(new.ip, vm.ip);
    assert_ne!(fixture::uid_of(new.pid), fixture::uid_of(vm.pid));
    assert_eq!(keeper.request(&json!({"end": {"vm": vm.id}})), json!({"out_of_memory": false}));
    assert!(is_gone(vm.pid) && fixture.groups_of(&vm.id).is_empty());
    assert!(!fixture.links().contains(&format!("vm{}:", 0)), "{}", fixture.links());
    keeper.stop();
    fixture.assert_nothing_left();
}

pub(crate) fn a_vm_that_reaches_the_api_does_so_under_every_keeper_and_server() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let (caller, other) = (keeper.launch_committed(), keeper.launch_committed());
    let listens = json!("10.98.0.1:7700");
    assert_eq!(keeper.whoami()["api"], listens);
    assert_eq!(keeper.request(&json!({"admit_to_api": {"vm": caller.id}})), json!({}));
    let unknown = json!({"admit_to_api": {"vm": VmId::generate()}});
    assert_eq!(keeper.request(&unknown)["refused"], "unknown_vm");
    let only_caller = format!("elements = {{ {} }}", caller.ip);
    assert!(fixture.api_callers().contains(&only_caller), "{}", fixture.api_callers());

    let server = keeper.server_pid();
    keeper.kill_server();
    wait_until("another server", || {
        keeper
            .try_request(&json!({"whoami": {}}))
            .is_some_and(|found| found["pid"] != server && found["api"] == listens)
    });
    keeper.crash();
    let keeper = fixture.keeper();
    assert_eq!(keeper.whoami()["api"], listens);
    assert!(fixture.api_callers().contains(&only_caller), "{}", fixture.api_callers());
    keeper.assert_adopted(&caller);
    keeper.request(&json!({"end": {"vm": caller.id}}));
    assert!(!fixture.api_callers().contains(&caller.ip), "{}", fixture.api_callers());
    keeper.assert_adopted(&other);
    keeper.stop_by(Signal::INT);
    fixture.assert_nothing_left();
}

pub(crate) fn vms_outlive_a_stop_by_a_service_manager() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let (vm, nobodys) = (keeper.launch_committed(), keeper.launch("base"));
    let log = keeper.log_file();
    keeper.stop();
    assert!(fs::read_to_string(log).unwrap().contains("1 VMs live on"));
    assert!(is_gone(nobodys.pid) && !is_gone(vm.pid));
    assert!(!fixture.data_dir().join("keeper/lock").exists());
    let keeper = fixture.keeper();
    keeper.assert_adopted(&vm);
    keeper.stop();
    // `doctor --clean` ends them.
    skep_keeper::clean_data_dir(&fixture.data_dir()).unwrap();
    wait_until("the VMM is gone", || is_gone(vm.pid));
    fixture.assert_nothing_left();
}

pub(crate) fn a_stop_at_a_terminal_ends_vms() {
    for signal in [Signal::INT, Signal::HUP] {
        let fixture = Fixture::new();
        let keeper = fixture.keeper();
        let vm = keeper.launch_committed();
        keeper.stop_by(signal);
        assert!(!Path::new(&format!("/proc/{}", vm.pid)).exists(), "{signal:?}");
        fixture.assert_nothing_left();
    }
}

/// Changes a VM's record while no keeper runs.
fn edit_record(fixture: &Fixture, vm: &fixture::LaunchedVm, change: impl FnOnce(&mut Value)) {
    let path = fixture.data_dir().join(format!("keeper/vms/{}.json", vm.id));
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut record);
    fs::write(&path, record.to_string()).unwrap();
}

pub(crate) fn vms_that_do_not_match_their_record_are_removed() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vms: Vec<_> = (0..9).map(|_| keeper.launch_committed()).collect();
    let [kept, other_boot, other_version, half_made, dead, no_sockets, no_tap, other_uid, later] = &vms[..]
    else {
        panic!()
    };
    keeper.crash();
    edit_record(&fixture, other_boot, |record| record["boot_id"] = json!("another"));
    edit_record(&fixture, other_version, |record| *record = json!({"version": 99}));
    edit_record(&fixture, half_made, |record| record["vmm"] = json!(null));
    kill_process(Pid::from_raw(dead.pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    fs::remove_dir_all(fixture.sockets().join(&no_sockets.id)).unwrap();
    edit_record(&fixture, no_tap, |record| record["ip"] = json!("10.98.0.200"));
    edit_record(&fixture, other_uid, |record| record["uid"] = json!(record["uid"].as_u64().unwrap() + 100));
    edit_record(&fixture, later, |record| {
        let start = record["vmm"]["process"]["start_time"].as_u64().unwrap();
        record["vmm"]["process"]["start_time"] = json!(start + 1);
    });
    fs::create_dir(fixture.sockets().join("stray")).unwrap();

    let keeper = fixture.keeper();
    keeper.assert_adopted(kept);
    assert_eq!(keeper.list(), [kept.id.as_str()]);
    assert!(keeper.log().contains("it has version 99"), "{}", keeper.log());
    for vm in &vms[1..] {
        wait_until("the end of a VM that is not taken over", || is_gone(vm.pid));
        assert!(fixture.groups_of(&vm.id).is_empty() && !fixture.sockets().join(&vm.id).exists());
    }
    assert!(!fixture.sockets().join("stray").exists());
    assert_eq!(fixture.links().matches(": vm").count(), 1, "{}", fixture.links());
    assert_eq!(fs::read_dir(fixture.data_dir().join("keeper/vms")).unwrap().count(), 1);
    keeper.stop_by(Signal::INT);
    fixture.assert_nothing_left();
}

pub(crate) fn a_foreign_process_named_by_a_record_is_not_touched() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let (vm, control) = (keeper.launch_committed(), keeper.launch_committed());
    keeper.crash();
    let mut canary = Command::new("sleep").arg("600").spawn().unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", canary.id())).unwrap();
    let start: u64 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    // All data is correct, except that the process is not a VMM.
    edit_record(&fixture, &vm, |record| {
        record["vmm"]["process"] = json!({"pid": canary.id(), "start_time": start});
    });
    let keeper = fixture.keeper();
    // Control: the format of the record is valid.
    keeper.assert_adopted(&control);
    assert_eq!(keeper.list(), [control.id.as_str()]);
    wait_until("the VMM is gone", || is_gone(vm.pid));
    assert!(keeper.log().contains("not in its control group"), "{}", keeper.log());
    keeper.stop_by(Signal::INT);
    assert!(canary.try_wait().unwrap().is_none(), "the canary was signalled");
    canary.kill().unwrap();
    canary.wait().unwrap();
    fixture.assert_nothing_left();
}

pub(crate) fn a_start_that_fails_leaves_vms_alone() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch_committed();
    keeper.crash();
    assert_eq!(fixture.keeper_with_settings(json!({"exit": 7})).0, 7);
    assert_ne!(fixture.keeper_with_settings(json!({"user": "nobody-of-this-name"})).0, 0);
    let keeper = fixture.keeper();
    keeper.assert_adopted(&vm);
    keeper.stop_by(Signal::INT);
    fixture.assert_nothing_left();
}

pub(crate) fn a_start_without_vms_ends_running_vms() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch_committed();
    keeper.crash();
    assert_eq!(fixture.keeper_with_settings(json!({"exit": 7, "no_swarm": true})).0, 7);
    wait_until("the VMM is gone", || is_gone(vm.pid));
    fixture.assert_nothing_left();
}
