//! Launches of VMs, and the ends of their VMMs.

use std::{fs, path::Path};

use rustix::process::Signal;
use serde_json::json;
use skep_harness::{process::is_zombie, wait_until};

use crate::{
    fakes,
    fixture::{self, Fixture},
};

pub(crate) fn a_vmm_comes_and_goes_without_a_trace() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch("base");
    assert_eq!(keeper.list(), [vm.id.as_str()]);
    assert!(Path::new(&format!("/proc/{}", vm.pid)).exists());
    // The state's text proves the order of the descriptors, and the echo that the VMM accepted the stream.
    assert_eq!(keeper.send_word(&vm, "hello"), json!({"answer": "hello", "state": "state"}));
    let usage = keeper.request(&json!({"usage": {"vm": vm.id}}));
    for figure in ["memory_bytes", "memory_limit_bytes", "disk_size_bytes"] {
        assert!(usage[figure].as_u64().unwrap() > 0, "{figure}: {usage}");
    }
    assert!(usage["load"]["held_bytes"].as_u64().unwrap() > 0, "{usage}");
    assert!(usage["load"]["disk_bytes"].as_u64().unwrap() > 0, "{usage}");
    assert!(fixture.links().contains("vm0"), "{}", fixture.links());
    assert!(fixture.sockets().join(&vm.id).is_dir());
    assert!(!fixture.groups_of(&vm.id).is_empty());

    assert_eq!(keeper.request(&json!({"end": {"vm": vm.id}})), json!({"out_of_memory": false}));
    assert!(!Path::new(&format!("/proc/{}", vm.pid)).exists());
    assert!(!fixture.links().contains("vm0"), "{}", fixture.links());
    assert!(!fixture.sockets().join(&vm.id).exists());
    assert!(fixture.groups_of(&vm.id).is_empty());
    assert_eq!(keeper.request(&json!({"end": {"vm": vm.id}}))["refused"], "unknown_vm");
    keeper.stop();
}

pub(crate) fn a_launch_that_fails_is_undone() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    for (template, code) in
        [("unknown", "unknown_template"), ("missing-program", "internal"), ("no-layer", "internal")]
    {
        let id = skep_api::VmId::generate();
        let answer = keeper.request(&json!({"launch": {"vm": id, "template": template}}));
        assert_eq!(answer["refused"], code, "{template}: {answer}");
        assert_eq!(keeper.list(), Vec::<String>::new(), "{template}");
        assert!(fixture.groups_of(&id.to_string()).is_empty(), "{template}");
        assert!(!fixture.sockets().join(id.to_string()).exists(), "{template}");
        assert!(!fixture.links().contains(": vm"), "{template}: {}", fixture.links());
    }
    keeper.stop();
}

pub(crate) fn a_damaged_template_is_not_used() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let somebodys = keeper.launch_committed();
    let nobodys = [keeper.launch("base"), keeper.launch("base")];
    let launch =
        || keeper.request(&json!({"launch": {"vm": skep_api::VmId::generate(), "template": "base"}}));
    let damage = fixture.data_dir().join(fakes::DAMAGE);
    fs::write(&damage, "").unwrap();
    for vm in &nobodys {
        assert_eq!(keeper.request(&json!({"commit": {"vm": vm.id}}))["refused"], "template_damaged");
    }
    assert_eq!(launch()["refused"], "template_damaged");
    for vm in &nobodys {
        wait_until("the VMM's end", || is_zombie(vm.pid));
        assert_eq!(keeper.request(&json!({"end": {"vm": vm.id}})), json!({"out_of_memory": false}));
    }
    assert_eq!(keeper.send_word(&somebodys, "hello")["answer"], "hello");
    assert_eq!(keeper.list(), [somebodys.id.as_str()]);

    fs::remove_file(&damage).unwrap();
    keeper.launch_committed();
    // Also if a launch detects the damage.
    let parked = keeper.launch("base");
    fs::write(&damage, "").unwrap();
    assert_eq!(launch()["refused"], "template_damaged");
    wait_until("the VMM's end", || is_zombie(parked.pid));
    keeper.stop_by(Signal::INT);
    fixture.assert_nothing_left();
}

pub(crate) fn an_out_of_memory_kill_is_reported() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch("base");
    keeper.send_word_without_answer(&vm, "hog");
    wait_until("the VMM is killed", || is_zombie(vm.pid));
    assert_eq!(keeper.request(&json!({"end": {"vm": vm.id}})), json!({"out_of_memory": true}));
    keeper.stop();
}

pub(crate) fn a_vmm_that_died_is_kept_until_it_is_ended() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch("base");
    keeper.send_word_without_answer(&vm, "die");
    wait_until("the VMM dies", || is_zombie(vm.pid));
    assert_eq!(keeper.list(), [vm.id.as_str()]);
    assert_eq!(keeper.request(&json!({"end": {"vm": vm.id}})), json!({"out_of_memory": false}));
    assert!(!Path::new(&format!("/proc/{}", vm.pid)).exists(), "a zombie is left");
    assert!(keeper.log().contains("these are my last words"), "{}", keeper.log());
    keeper.stop();
}

pub(crate) fn ten_launches_at_once_share_nothing() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vms: Vec<_> = std::thread::scope(|scope| {
        let launches: Vec<_> = (0..10).map(|_| scope.spawn(|| keeper.launch("base"))).collect();
        launches.into_iter().map(|launch| launch.join().unwrap()).collect()
    });
    let distinct = |fact: fn(&fixture::LaunchedVm) -> String| {
        vms.iter().map(fact).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(distinct(|vm| vm.pid.to_string()), 10);
    assert_eq!(distinct(|vm| vm.ip.clone()), 10);
    assert_eq!(distinct(|vm| fixture::uid_of(vm.pid).to_string()), 10);
    keeper.stop();
    fixture.assert_nothing_left();
}

pub(crate) fn changes_of_a_vm_at_once_are_all_recorded() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    for _ in 0..10 {
        let vm = keeper.launch("base");
        std::thread::scope(|scope| {
            for change in ["commit", "admit_to_api"].repeat(8) {
                let request = json!({change: {"vm": vm.id}});
                let keeper = &keeper;
                scope.spawn(move || assert_eq!(keeper.request(&request), json!({}), "{request}"));
            }
        });
        let record = fixture.data_dir().join(format!("keeper/vms/{}.json", vm.id));
        let record: serde_json::Value = serde_json::from_slice(&fs::read(record).unwrap()).unwrap();
        assert_eq!([&record["committed"], &record["reaches_api"]], [true, true], "{record}");
        keeper.request(&json!({"end": {"vm": vm.id}}));
    }
    keeper.stop();
}

pub(crate) fn more_vms_than_the_machine_holds_are_refused() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vms: Vec<_> = (0..fakes::MAX_VMS).map(|_| keeper.launch("base")).collect();
    let one_more = json!({"launch": {"vm": skep_api::VmId::generate(), "template": "base"}});
    assert_eq!(keeper.request(&one_more)["refused"], "no_capacity");
    keeper.request(&json!({"end": {"vm": vms[0].id}}));
    keeper.launch("base");
    assert_eq!(keeper.request(&one_more)["refused"], "no_capacity");
    keeper.stop();
}

pub(crate) fn a_delta_that_only_vms_hold_counts_once_while_one_of_them_runs() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let shared_bytes = |keeper: &fixture::RunningKeeper| {
        let memory = keeper.request(&json!({"memory": {}}));
        memory["templates_bytes"].as_u64().unwrap()
    };
    let end = |keeper: &fixture::RunningKeeper, vm: &fixture::LaunchedVm| {
        assert_eq!(keeper.request(&json!({"end": {"vm": vm.id}})), json!({"out_of_memory": false}));
    };
    keeper.launch("base");
    assert_eq!(shared_bytes(&keeper), 0, "a VM of a baked template has no delta");
    let [first, last] = [(); 2].map(|()| keeper.launch("snapshot"));
    let both_files = 2 * 4096;
    assert_eq!(shared_bytes(&keeper), both_files);
    end(&keeper, &first);
    assert_eq!(shared_bytes(&keeper), both_files);

    // The next keeper knows it from the record of the VM.
    assert_eq!(keeper.request(&json!({"commit": {"vm": last.id}})), json!({}));
    keeper.crash();
    let keeper = fixture.keeper();
    assert_eq!(shared_bytes(&keeper), both_files);
    end(&keeper, &last);
    assert_eq!(shared_bytes(&keeper), 0);
    keeper.stop();
    fixture.assert_nothing_left();
}

pub(crate) fn a_launch_on_a_full_disk_fails_and_is_undone() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let layers = fixture.data_dir().join("keeper/layers");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("skep-test", &layers, "tmpfs", flags, c"size=4k").unwrap();
    let filled = fs::write(layers.join("filler"), [1; 4096]);
    let answer = keeper.request(&json!({"launch": {"vm": skep_api::VmId::generate(), "template": "base"}}));
    rustix::mount::unmount(&layers, rustix::mount::UnmountFlags::DETACH).unwrap();
    filled.unwrap();
    assert_eq!(answer["refused"], "no_capacity", "{answer}");
    assert_eq!(keeper.list(), Vec::<String>::new());
    assert!(!fixture.links().contains(": vm"), "{}", fixture.links());
    keeper.launch("base");
    keeper.stop();
}
