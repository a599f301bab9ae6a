//! Tests of a real keeper with fake servers and VMMs. Needs root.
//!
//! This binary acts as test, keeper, stage, server and helper.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fakes;
mod fixture;
mod hostile;

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use fixture::Fixture;
use libtest_mimic::{Arguments, Trial};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use skep_api::VmId;
use skep_harness::{
    process::{is_gone, is_zombie},
    wait_until,
};

#[expect(clippy::too_many_lines, reason = "a line for each test")]
fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("stage") => return skep_jail::stage::main(),
        Some("server-process") => return fakes::server(),
        Some("keeper") => return fakes::keeper(),
        Some("helper") => return fakes::helper(),
        _ => {}
    }
    assert!(rustix::process::getuid().is_root(), "the tests of the keeper need root: run them with sudo");
    let trials = [
        ("a_vmm_comes_and_goes_without_a_trace", a_vmm_comes_and_goes_without_a_trace as fn()),
        ("the_server_has_no_privilege", the_server_has_no_privilege),
        ("uncommitted_vms_end_with_their_server", uncommitted_vms_end_with_their_server),
        ("committed_vms_outlive_their_server", committed_vms_outlive_their_server),
        ("vms_outlive_a_keeper_that_is_killed", vms_outlive_a_keeper_that_is_killed),
        (
            "a_vm_that_reaches_the_api_does_so_under_every_keeper_and_server",
            a_vm_that_reaches_the_api_does_so_under_every_keeper_and_server,
        ),
        ("vms_outlive_a_stop_by_a_service_manager", vms_outlive_a_stop_by_a_service_manager),
        ("a_stop_at_a_terminal_ends_vms", a_stop_at_a_terminal_ends_vms),
        ("vms_that_do_not_match_their_record_are_removed", vms_that_do_not_match_their_record_are_removed),
        (
            "a_foreign_process_named_by_a_record_is_not_touched",
            a_foreign_process_named_by_a_record_is_not_touched,
        ),
        ("a_start_that_fails_leaves_vms_alone", a_start_that_fails_leaves_vms_alone),
        ("a_start_without_vms_ends_running_vms", a_start_without_vms_ends_running_vms),
        ("a_stop_leaves_nothing", a_stop_leaves_nothing),
        ("the_next_start_clears_what_a_crash_left", the_next_start_clears_what_a_crash_left),
        (
            "clean_clears_what_a_crash_left_and_refuses_before",
            clean_clears_what_a_crash_left_and_refuses_before,
        ),
        (
            "a_second_keeper_gets_pid_and_address_of_the_first",
            a_second_keeper_gets_pid_and_address_of_the_first,
        ),
        ("a_launch_that_fails_is_undone", a_launch_that_fails_is_undone),
        ("a_damaged_template_is_not_used", a_damaged_template_is_not_used),
        ("an_out_of_memory_kill_is_reported", an_out_of_memory_kill_is_reported),
        ("a_vmm_that_died_is_kept_until_it_is_ended", a_vmm_that_died_is_kept_until_it_is_ended),
        ("a_vmm_that_keeps_its_stderr_open_is_ended", hostile::a_vmm_that_keeps_its_stderr_open_is_ended),
        ("ten_launches_at_once_share_nothing", ten_launches_at_once_share_nothing),
        ("more_vms_than_the_machine_holds_are_refused", more_vms_than_the_machine_holds_are_refused),
        ("a_launch_on_a_full_disk_fails_and_is_undone", a_launch_on_a_full_disk_fails_and_is_undone),
        ("groups_that_cannot_be_recorded_are_removed", groups_that_cannot_be_recorded_are_removed),
        ("descriptors_suffice_for_many_vms", descriptors_suffice_for_many_vms),
        ("a_server_that_cannot_start_ends_the_keeper", a_server_that_cannot_start_ends_the_keeper),
        (
            "sockets_that_a_server_passes_hold_up_nothing",
            hostile::sockets_that_a_server_passes_hold_up_nothing,
        ),
        (
            "a_socket_that_outlives_its_server_holds_up_nothing",
            hostile::a_socket_that_outlives_its_server_holds_up_nothing,
        ),
        ("a_helper_is_isolated_and_ends_with_its_server", a_helper_is_isolated_and_ends_with_its_server),
        ("a_restart_brings_another_server_to_the_same_vms", a_restart_brings_another_server_to_the_same_vms),
        ("restarts_at_once_share_their_outcome", restarts_at_once_share_their_outcome),
        ("a_failed_restart_changes_nothing", a_failed_restart_changes_nothing),
    ];
    let trials = trials.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit_code()
}

fn a_vmm_comes_and_goes_without_a_trace() {
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

fn the_server_has_no_privilege() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let view = keeper.whoami();
    let status = view["status"].as_str().unwrap();
    for line in [
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.contains(line), "{line} is missing: {status}");
    }
    assert!(status.contains("Uid:\t65534\t65534\t65534\t65534\n"), "{status}");
    assert!(status.contains("Groups:\t \n"), "{status}");
    assert_eq!(view["keeper"], "Permission denied (os error 13)");
    assert_eq!(view["admin_key"], "Permission denied (os error 13)");
    assert_eq!(view["server"], "", "it cannot write its own part");
    assert_eq!(view["descriptors"], json!(["0", "1", "2", "3"]));
    assert_eq!(view["settings"], json!({"a": 1}));
    let key = fs::read_to_string(fixture.data_dir().join("admin.key")).unwrap();
    assert!(key.starts_with(view["key_prefix"].as_str().unwrap()));
    keeper.stop();
}

fn uncommitted_vms_end_with_their_server() {
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

fn committed_vms_outlive_their_server() {
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

fn vms_outlive_a_keeper_that_is_killed() {
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

fn a_vm_that_reaches_the_api_does_so_under_every_keeper_and_server() {
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

fn vms_outlive_a_stop_by_a_service_manager() {
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

fn a_stop_at_a_terminal_ends_vms() {
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

fn vms_that_do_not_match_their_record_are_removed() {
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

fn a_foreign_process_named_by_a_record_is_not_touched() {
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

fn a_start_that_fails_leaves_vms_alone() {
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

fn a_start_without_vms_ends_running_vms() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch_committed();
    keeper.crash();
    assert_eq!(fixture.keeper_with_settings(json!({"exit": 7, "no_swarm": true})).0, 7);
    wait_until("the VMM is gone", || is_gone(vm.pid));
    fixture.assert_nothing_left();
}

fn a_stop_leaves_nothing() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vms = [keeper.launch("base"), keeper.launch("base")];
    assert!(Path::new("/run/netns").join(fixture.name()).exists());
    keeper.stop();
    for vm in vms {
        assert!(!Path::new(&format!("/proc/{}", vm.pid)).exists());
    }
    fixture.assert_nothing_left();
}

fn the_next_start_clears_what_a_crash_left() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch("base");
    let server = keeper.server_pid();
    keeper.crash();
    wait_until("the server ends with its keeper", || !Path::new(&format!("/proc/{server}")).exists());
    assert!(Path::new(&format!("/proc/{}", vm.pid)).exists(), "the VMM died with its keeper");
    let keeper = fixture.keeper();
    wait_until("the VMM is gone", || !Path::new(&format!("/proc/{}", vm.pid)).exists());
    keeper.launch("base");
    keeper.stop();
    fixture.assert_nothing_left();
}

fn clean_clears_what_a_crash_left_and_refuses_before() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch("base");
    let refused = skep_keeper::clean_data_dir(&fixture.data_dir()).unwrap_err();
    assert!(matches!(refused, skep_keeper::Error::Locked { .. }), "{refused}");
    keeper.crash();
    skep_keeper::clean_data_dir(&fixture.data_dir()).unwrap();
    wait_until("the VMM is gone", || !Path::new(&format!("/proc/{}", vm.pid)).exists());
    fixture.assert_nothing_left();
    assert!(fixture.data_dir().join("server").is_dir(), "clean took data away");
}

fn a_second_keeper_gets_pid_and_address_of_the_first() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let (status, message) = fixture.failing_keeper();
    assert_ne!(status, 0);
    assert!(message.contains(&keeper.pid().to_string()) && message.contains(&keeper.address), "{message}");
    // The first keeper is not affected.
    keeper.launch("base");
    keeper.stop();
}

fn a_launch_that_fails_is_undone() {
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

fn a_damaged_template_is_not_used() {
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

fn an_out_of_memory_kill_is_reported() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let vm = keeper.launch("base");
    keeper.send_word_without_answer(&vm, "hog");
    wait_until("the VMM is killed", || is_zombie(vm.pid));
    assert_eq!(keeper.request(&json!({"end": {"vm": vm.id}})), json!({"out_of_memory": true}));
    keeper.stop();
}

fn a_vmm_that_died_is_kept_until_it_is_ended() {
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

fn ten_launches_at_once_share_nothing() {
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

fn a_server_that_cannot_start_ends_the_keeper() {
    let fixture = Fixture::new();
    let (status, _) = fixture.keeper_with_settings(json!({"exit": 7}));
    assert_eq!(status, 7);
    fixture.assert_nothing_left();
}

fn a_helper_is_isolated_and_ends_with_its_server() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    let helper = keeper.request(&json!({"helper": {"kind": "commands"}}));
    assert_eq!(helper["pid"], 1, "{helper}");
    assert_eq!(helper["processes"], json!([1]), "it sees others than its own");
    assert_eq!(helper["environment"], json!([["A", "b"]]));
    assert_eq!((&helper["scratch"], &helper["lifts_limits"]), (&json!(0), &json!(false)), "{helper}");
    assert_eq!((&helper["makes_groups"], &helper["moves"]), (&json!(true), &json!(true)), "{helper}");
    let status = helper["status"].as_str().unwrap();
    for line in ["Uid:\t65534\t", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"]
    {
        assert!(status.contains(line), "{line}: {status}");
    }
    assert_eq!(helper["arguments"][0], "--groups", "{helper}");
    let group = fixture.groups_of("helper-1");
    let limit = |file: &str| group.iter().find_map(|group| fs::read_to_string(group.join(file)).ok());
    assert_eq!(limit("pids.max").unwrap().trim(), "32");
    let memory = ["memory.max", "memory.limit_in_bytes"].iter().find_map(|file| limit(file)).unwrap();
    assert_eq!(memory.trim(), (64_u64 << 20).to_string());

    // Further helpers at the same time, each with a group of its own, up to the limit.
    assert_eq!(keeper.request(&json!({"helper": {"kind": "commands"}}))["pid"], 1);
    assert!(!fixture.groups_of("helper-2").is_empty());
    for _ in 0..2 {
        assert_eq!(keeper.request(&json!({"helper": {"kind": "commands"}}))["pid"], 1);
    }
    assert_eq!(keeper.request(&json!({"helper": {"kind": "commands"}}))["refused"], "exec_unavailable");
    // The other kind has a limit of its own, and executes programs of this machine only.
    assert_eq!((&helper["executes_scratch"], &helper["executes_programs"]), (&json!(true), &json!(true)));
    let git = keeper.request(&json!({"helper": {"kind": "git"}}));
    assert_eq!((&git["executes_scratch"], &git["executes_programs"]), (&json!(false), &json!(true)), "{git}");
    keeper.kill_server();
    wait_until("the helpers' end", || fixture.groups_of("helper-1").is_empty());
    wait_until("the other helpers' end", || fixture.groups_of("helper-4").is_empty());
    assert_eq!(keeper.request(&json!({"helper": {"kind": "commands"}}))["pid"], 1);
    keeper.stop();
    fixture.assert_nothing_left();
    assert_eq!(fixture.groups_of(&format!("{}-helpers", fixture.name())), Vec::<std::path::PathBuf>::new());
}

fn a_restart_brings_another_server_to_the_same_vms() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper_with(&json!({"a": 1, "next": {"a": 2, "next": {"exit": 7}}}));
    let vm = keeper.launch_committed();
    let nobodys = keeper.launch("base");
    let before = keeper.server_pid();
    // The fake server ends at SIGTERM, sometimes before it passes the answer on.
    if let Some(answer) = keeper.try_request(&json!({"restart": {}})) {
        assert_eq!(answer, json!({}));
    }
    // Either server answers until only one is left.
    wait_until("the new server", || {
        keeper
            .try_request(&json!({"whoami": {}}))
            .is_some_and(|server| server["alone"] == true && server["pid"] != before)
    });
    assert_eq!(keeper.whoami()["settings"]["a"], 2);
    keeper.assert_adopted(&vm);
    assert_eq!(keeper.list(), std::slice::from_ref(&vm.id), "{} was nobody's", nobodys.id);
    keeper.stop();
}

fn restarts_at_once_share_their_outcome() {
    let fixture = Fixture::new();
    // It is killed some seconds after the restart and answers until then.
    let keeper = fixture.keeper_with(&json!({"patient": true, "next": {"a": 2}}));
    let before = keeper.server_pid();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let restarts: Vec<_> =
            (0..3).map(|_| scope.spawn(|| keeper.try_request(&json!({"restart": {}})))).collect();
        restarts.into_iter().map(|restart| restart.join().unwrap()).collect()
    });
    assert_eq!(answers, vec![Some(json!({})); 3]);
    wait_until("the new server", || {
        keeper
            .try_request(&json!({"whoami": {}}))
            .is_some_and(|server| server["alone"] == true && server["pid"] != before)
    });
    assert_eq!(keeper.whoami()["settings"], json!({"a": 2}), "there was more than one restart");
    keeper.stop();

    let fixture = Fixture::new();
    let keeper = fixture.keeper_with(&json!({"next": {"unable": "the certificate is none"}}));
    let refusals: Vec<_> = std::thread::scope(|scope| {
        let restarts: Vec<_> =
            (0..3).map(|_| scope.spawn(|| keeper.request(&json!({"restart": {}})))).collect();
        restarts.into_iter().map(|restart| restart.join().unwrap()).collect()
    });
    assert_eq!(refusals, vec![json!({"refused": "restart_refused"}); 3]);
    keeper.stop();
}

fn a_failed_restart_changes_nothing() {
    for next in [
        json!({"no_restart": "`listen` changed"}),
        json!({"next": {"unable": "the certificate is none"}}),
        json!({"next": {"exit": 7}}),
    ] {
        let fixture = Fixture::new();
        let keeper = fixture.keeper_with(&next);
        let vm = keeper.launch("base");
        let before = keeper.server_pid();
        assert_eq!(keeper.request(&json!({"restart": {}}))["refused"], "restart_refused", "{next}");
        assert_eq!(keeper.server_pid(), before);
        // Even an uncommitted VM keeps running.
        assert_eq!(keeper.list(), std::slice::from_ref(&vm.id));
        keeper.stop();
    }
}

fn more_vms_than_the_machine_holds_are_refused() {
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

fn a_launch_on_a_full_disk_fails_and_is_undone() {
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

fn groups_that_cannot_be_recorded_are_removed() {
    let fixture = Fixture::new();
    fixture.keeper().stop();
    let records = fixture.data_dir().join("keeper");
    let flags = rustix::mount::MountFlags::empty();
    // Space for the lock and for the admin key's record, a page each.
    rustix::mount::mount("skep-test", &records, "tmpfs", flags, c"size=8k").unwrap();
    let (keeper, no_swarm) = fixture.start();
    let groups = fixture.groups_of(&fixture.name());
    keeper.stop();
    rustix::mount::unmount(&records, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert!(no_swarm.as_str().unwrap().contains("No space left"), "{no_swarm}");
    assert!(groups.is_empty(), "{groups:?}");
}

fn descriptors_suffice_for_many_vms() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper();
    for pid in [keeper.pid(), keeper.server_pid()] {
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let [soft, hard] = [3, 4].map(|at| line.split_whitespace().nth(at).unwrap());
        assert_eq!(soft, hard, "{line}");
    }
    keeper.stop();
}

const TIMEOUT: Duration = Duration::from_secs(30);
