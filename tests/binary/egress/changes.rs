//! Connections of a VM while its policy, the name servers of the machine or the server change.

use std::{fs, path::Path, process::Command};

use serde_json::json;
use skep_harness::{binary::step, eventually, process::kill, temp_dir};

use super::{
    OPTIONS, begin_long_connection, boot, change, fetch, is_refusal, is_silent, policy, recorded,
    wait_for_connection_end, wait_for_growth, world::World,
};
use crate::harness::{Skep, binary};

#[test]
fn a_connection_outlives_a_restart_and_ends_by_a_change_that_forbids_it() {
    let folder = temp_dir();
    let file = folder.path().join("resolv.conf");
    // No name server answers at this address.
    fs::write(&file, "nameserver 203.0.113.8\n").unwrap();
    World::run_with_resolv_conf(file.clone(), async move || {
        // Without `--egress-resolver`.
        let options = &OPTIONS[..2];
        let skep = Skep::start_on(temp_dir(), options).await;
        let vm = boot(&skep, policy()).await;
        step("name servers of the machine", name_servers_of_the_machine_are_asked(&skep, vm, &file)).await;
        step("another list", a_list_ends_what_it_does_not_have(&skep, vm)).await;
        let skep = skep.stop_and_leave_vms().start_with(options).await;
        step("a restart", wait_for_growth(&skep, vm)).await;
        let skep = a_restore_narrows_the_policy(skep, vm, options).await;
        step("none", none_ends_all(&skep, vm)).await;
    });
}

/// Asserts that the egress process uses the name servers of /etc/resolv.conf, and follows changes of that file.
async fn name_servers_of_the_machine_are_asked(skep: &Skep, vm: u64, resolv_conf: &Path) {
    let refused = fetch(skep, vm, "http://api.test/").await;
    assert!(is_refusal(&refused), "{refused:?}");
    fs::write(resolv_conf, "nameserver 203.0.113.53\n").unwrap();
    let world = Ok("world api.test".to_owned());
    eventually("the new name server", async || fetch(skep, vm, "http://api.test/").await == world).await;
    // A restarted egress process uses the new name server, too.
    let killed = recorded(skep.data_dir.path());
    kill(killed);
    eventually("the next process", async || recorded(skep.data_dir.path()) != killed).await;
    assert_eq!(fetch(skep, vm, "http://api.test/").await, world);
}

async fn a_list_ends_what_it_does_not_have(skep: &Skep, vm: u64) {
    begin_long_connection(skep, vm).await;
    let forbidden =
        "(curl -sS -N http://api.test/slow > /root/ends; touch /root/ends.over) > /dev/null 2>&1 &";
    skep.output(vm, forbidden).await;
    eventually("bytes of the other connection", async || {
        skep.exec(vm, "test -s /root/ends").await["exit_code"] == 0
    })
    .await;
    let list = json!({"allow": ["203.0.113.8", "b.test"]});
    assert_eq!(change(skep, vm, &list).await.ok(200)["egress"], list);
    wait_for_connection_end(skep, vm, "ends").await;
    wait_for_growth(skep, vm).await;
    assert!(fetch(skep, vm, "http://api.test/").await.is_err());
    assert_eq!(fetch(skep, vm, "http://b.test/").await.as_deref(), Ok("world b.test"));

    let wrong = change(skep, vm, &json!({"allow": ["10.0.0.1/8"]})).await;
    assert!(wrong.refused(400, "invalid_value").contains("give 10.0.0.0/8"));
}

/// Restores a backup from before a change that allowed more.
async fn a_restore_narrows_the_policy(skep: Skep, vm: u64, options: &[&str]) -> Skep {
    let folder = temp_dir();
    let file = folder.path().join("backup");
    let by_operator = |verb: &str, data_dir: &Path| {
        let mut command = Command::new(binary());
        let done = command.arg(verb).arg(&file).arg("--data-dir").arg(data_dir).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    let narrow = skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200)["egress"].clone();
    by_operator("backup", skep.data_dir.path());
    change(&skep, vm, &json!("all")).await.ok(200);
    let control = fetch(&skep, vm, "http://api.test/").await;
    assert_eq!(control.as_deref(), Ok("world api.test"), "the control: the change allowed it");

    let stopped = skep.stop_and_leave_vms();
    by_operator("restore", stopped.path());
    let skep = stopped.start_with(options).await;
    assert_eq!(skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200)["egress"], narrow);
    assert!(fetch(&skep, vm, "http://api.test/").await.is_err());
    assert_eq!(fetch(&skep, vm, "http://b.test/").await.as_deref(), Ok("world b.test"));
    wait_for_growth(&skep, vm).await;
    skep
}

async fn none_ends_all(skep: &Skep, vm: u64) {
    assert_eq!(change(skep, vm, &json!("none")).await.ok(200)["egress"], "none");
    wait_for_connection_end(skep, vm, "long").await;
    assert!(is_silent(skep, vm, "http://b.test/").await);
}
