//! Tests of a real keeper with fake servers and VMMs. Needs root.
//!
//! This binary acts as test, keeper, stage, server and helper.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod fake_server;
mod fake_templates;
mod fakes;
mod fixture;
mod hostile;
mod launches;
mod restarts;
mod succession;

use std::{fs, path::Path, process::ExitCode, time::Duration};

use fixture::Fixture;
use libtest_mimic::{Arguments, Trial};
use serde_json::json;
use skep_harness::wait_until;

#[expect(clippy::too_many_lines, reason = "a line for each test")]
fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("stage") => return skep_jail::stage::main(),
        Some("server-process") => return fake_server::server(),
        Some("keeper") => return fakes::keeper(),
        Some("helper") => return fakes::helper(),
        _ => {}
    }
    let arguments = Arguments::from_args();
    let is_root = rustix::process::getuid().is_root();
    assert!(arguments.list || is_root, "the tests of the keeper need root: run them with sudo");
    let trials = [
        ("a_vmm_comes_and_goes_without_a_trace", launches::a_vmm_comes_and_goes_without_a_trace as fn()),
        ("the_server_has_no_privilege", the_server_has_no_privilege),
        ("uncommitted_vms_end_with_their_server", succession::uncommitted_vms_end_with_their_server),
        ("committed_vms_outlive_their_server", succession::committed_vms_outlive_their_server),
        ("vms_outlive_a_keeper_that_is_killed", succession::vms_outlive_a_keeper_that_is_killed),
        (
            "a_vm_that_reaches_the_api_does_so_under_every_keeper_and_server",
            succession::a_vm_that_reaches_the_api_does_so_under_every_keeper_and_server,
        ),
        ("vms_outlive_a_stop_by_a_service_manager", succession::vms_outlive_a_stop_by_a_service_manager),
        ("a_stop_at_a_terminal_ends_vms", succession::a_stop_at_a_terminal_ends_vms),
        (
            "vms_that_do_not_match_their_record_are_removed",
            succession::vms_that_do_not_match_their_record_are_removed,
        ),
        (
            "a_foreign_process_named_by_a_record_is_not_touched",
            succession::a_foreign_process_named_by_a_record_is_not_touched,
        ),
        ("a_start_that_fails_leaves_vms_alone", succession::a_start_that_fails_leaves_vms_alone),
        ("a_start_without_vms_ends_running_vms", succession::a_start_without_vms_ends_running_vms),
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
        ("a_launch_that_fails_is_undone", launches::a_launch_that_fails_is_undone),
        ("a_damaged_template_is_not_used", launches::a_damaged_template_is_not_used),
        ("an_out_of_memory_kill_is_reported", launches::an_out_of_memory_kill_is_reported),
        ("a_vmm_that_died_is_kept_until_it_is_ended", launches::a_vmm_that_died_is_kept_until_it_is_ended),
        (
            "a_capture_does_not_take_the_place_of_a_template",
            hostile::a_capture_does_not_take_the_place_of_a_template,
        ),
        (
            "a_template_larger_than_the_machine_is_not_built",
            hostile::a_template_larger_than_the_machine_is_not_built,
        ),
        ("a_vmm_that_keeps_its_stderr_open_is_ended", hostile::a_vmm_that_keeps_its_stderr_open_is_ended),
        ("ten_launches_at_once_share_nothing", launches::ten_launches_at_once_share_nothing),
        ("changes_of_a_vm_at_once_are_all_recorded", launches::changes_of_a_vm_at_once_are_all_recorded),
        (
            "more_vms_than_the_machine_holds_are_refused",
            launches::more_vms_than_the_machine_holds_are_refused,
        ),
        (
            "a_delta_that_only_vms_hold_counts_once_while_one_of_them_runs",
            launches::a_delta_that_only_vms_hold_counts_once_while_one_of_them_runs,
        ),
        (
            "a_launch_on_a_full_disk_fails_and_is_undone",
            launches::a_launch_on_a_full_disk_fails_and_is_undone,
        ),
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
        (
            "a_restart_brings_another_server_to_the_same_vms",
            restarts::a_restart_brings_another_server_to_the_same_vms,
        ),
        ("restarts_at_once_share_their_outcome", restarts::restarts_at_once_share_their_outcome),
        ("a_failed_restart_changes_nothing", restarts::a_failed_restart_changes_nothing),
    ];
    let trials = trials.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    libtest_mimic::run(&arguments, trials.into()).exit_code()
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
    let group = fixture.groups_of_helper(1);
    let limit = |file: &str| group.iter().find_map(|group| fs::read_to_string(group.join(file)).ok());
    assert_eq!(limit("pids.max").unwrap().trim(), "32");
    let memory = ["memory.max", "memory.limit_in_bytes"].iter().find_map(|file| limit(file)).unwrap();
    assert_eq!(memory.trim(), (64_u64 << 20).to_string());

    // Further helpers at the same time, each with a group of its own, up to the limit.
    assert_eq!(keeper.request(&json!({"helper": {"kind": "commands"}}))["pid"], 1);
    assert!(!fixture.groups_of_helper(2).is_empty());
    for _ in 0..2 {
        assert_eq!(keeper.request(&json!({"helper": {"kind": "commands"}}))["pid"], 1);
    }
    assert_eq!(keeper.request(&json!({"helper": {"kind": "commands"}}))["refused"], "exec_unavailable");
    // The other kind has a limit of its own, and executes programs of this machine only.
    assert_eq!((&helper["executes_scratch"], &helper["executes_programs"]), (&json!(true), &json!(true)));
    let git = keeper.request(&json!({"helper": {"kind": "git"}}));
    assert_eq!((&git["executes_scratch"], &git["executes_programs"]), (&json!(false), &json!(true)), "{git}");
    keeper.kill_server();
    wait_until("the helpers' end", || fixture.groups_of_helper(1).is_empty());
    wait_until("the other helpers' end", || fixture.groups_of_helper(4).is_empty());
    assert_eq!(keeper.request(&json!({"helper": {"kind": "commands"}}))["pid"], 1);
    keeper.stop();
    fixture.assert_nothing_left();
    assert_eq!(fixture.groups_of(&format!("{}-helpers", fixture.name())), Vec::<std::path::PathBuf>::new());
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

const TIMEOUT: Duration = Duration::from_secs(60);
