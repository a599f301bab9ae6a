//! What happens to connections of VMs while the processes around them end and start.

use std::{fs, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use skep_harness::{binary::send, eventually, eventually_within, process::kill, temp_dir};

use crate::{
    egress::{
        OPTIONS, assert_policies, begin_long_connection, boot, fetch, policy, record_path, recorded,
        wait_for_growth, world::World,
    },
    harness::Skep,
};

/// Runs in a VM until its file is removed: connects to an allowed host, and to others that must stay closed.
const PROBE: &str = "touch /root/probing; while test -e /root/probing; do
    curl -s -m 20 http://api.test/ > /dev/null; echo $? >> /root/allowed
    for url in http://other.test/ http://203.0.113.7/ http://priv.test/ http://10.9.0.1/; do
        curl -s -m 20 $url > /dev/null && echo $url >> /root/open
    done
done > /dev/null 2>&1 &";

fn is_alive(pid: u32) -> bool {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline"));
    line.is_ok_and(|line| line.contains("egress-process"))
}

async fn lines(skep: &Skep, vm: u64, file: &str) -> usize {
    skep.output(vm, &format!("touch {file}; wc -l < {file}")).await.trim().parse().unwrap()
}

/// Waits until the probe has connected again to the allowed host, twice: the first one may have begun before.
async fn wait_for_probes(skep: &Skep, vm: u64) {
    let before = lines(skep, vm, "/root/allowed").await;
    // A connection may wait for 20 seconds while no process serves it.
    let limit = Duration::from_secs(180);
    let connected = async || lines(skep, vm, "/root/allowed").await > before + 2;
    eventually_within(limit, "connections of the probe", connected).await;
}

/// Ends the probe. Asserts that it reached nothing that it must not, and returns how many connections failed.
async fn end_probe(skep: &Skep, vm: u64) -> usize {
    skep.output(vm, "rm /root/probing").await;
    assert_eq!(lines(skep, vm, "/root/open").await, 0, "{}", skep.output(vm, "cat /root/open").await);
    skep.output(vm, "grep -vc '^0$' /root/allowed || true").await.trim().parse().unwrap()
}

#[test]
fn connections_live_on_while_the_keeper_and_the_server_end_and_start() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vms =
            [boot(&skep, policy()).await, boot(&skep, json!("all")).await, boot(&skep, json!("none")).await];
        begin_long_connection(&skep, vms[0]).await;
        skep.output(vms[0], PROBE).await;
        wait_for_probes(&skep, vms[0]).await;
        let process = recorded(skep.data_dir.path());

        let server = skep.server_pid().unwrap();
        kill(server);
        skep.wait_for_server_after(server).await;
        wait_for_probes(&skep, vms[0]).await;

        let skep = skep.stop_and_leave_vms().start_with(&OPTIONS).await;
        wait_for_probes(&skep, vms[0]).await;
        let skep = skep.crash().start_with(&OPTIONS).await;
        wait_for_probes(&skep, vms[0]).await;

        assert_eq!(recorded(skep.data_dir.path()), process, "it is adopted");
        wait_for_growth(&skep, vms[0]).await;
        assert_eq!(end_probe(&skep, vms[0]).await, 0, "a new connection failed");
        assert_policies(&skep, vms).await;
    });
}

#[test]
fn nothing_is_open_or_lost_when_the_egress_process_is_killed_with_the_others() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vms =
            [boot(&skep, policy()).await, boot(&skep, json!("all")).await, boot(&skep, json!("none")).await];
        skep.output(vms[0], PROBE).await;
        wait_for_probes(&skep, vms[0]).await;

        // Egress, then server.
        kill(recorded(skep.data_dir.path()));
        let server = skep.server_pid().unwrap();
        kill(server);
        skep.wait_for_server_after(server).await;
        wait_for_probes(&skep, vms[0]).await;
        // Server, then egress.
        let server = skep.server_pid().unwrap();
        kill(server);
        kill(recorded(skep.data_dir.path()));
        skep.wait_for_server_after(server).await;
        wait_for_probes(&skep, vms[0]).await;
        // Egress, then keeper.
        let process = recorded(skep.data_dir.path());
        kill(process);
        let skep = skep.crash().start_with(&OPTIONS).await;
        wait_for_probes(&skep, vms[0]).await;
        assert_ne!(recorded(skep.data_dir.path()), process);
        // Keeper, then egress.
        let process = recorded(skep.data_dir.path());
        let crashed = skep.crash();
        kill(process);
        let skep = crashed.start_with(&OPTIONS).await;
        wait_for_probes(&skep, vms[0]).await;

        end_probe(&skep, vms[0]).await;
        assert_policies(&skep, vms).await;
    });
}

#[test]
fn a_process_of_another_protocol_keeps_its_connections_until_a_policy_changes() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vm = boot(&skep, policy()).await;
        begin_long_connection(&skep, vm).await;
        skep.output(vm, PROBE).await;
        wait_for_probes(&skep, vm).await;
        let old = recorded(skep.data_dir.path());
        let skep = restart_with_another_protocol(skep).await;
        wait_for_probes(&skep, vm).await;
        eventually("the new process", async || recorded(skep.data_dir.path()) != old).await;
        wait_for_growth(&skep, vm).await;
        assert!(is_alive(old));
        assert_eq!(end_probe(&skep, vm).await, 0, "a new connection failed");

        let change = json!({"egress": {"allow": ["api.test"]}});
        send(skep.request(Method::PATCH, &format!("/api/swarm/vm/{vm}")).json(&change)).await.ok(200);
        eventually("the end of the old process", async || !is_alive(old)).await;
        assert_eq!(fetch(&skep, vm, "http://api.test/").await.as_deref(), Ok("world api.test"));
        assert!(fetch(&skep, vm, "http://203.0.113.8/").await.is_err());

        // A further keeper cannot tell the old process of a policy, so it ends it.
        let change = json!({"egress": policy()});
        send(skep.request(Method::PATCH, &format!("/api/swarm/vm/{vm}")).json(&change)).await.ok(200);
        skep.output(vm, "rm -f /root/long /root/long.over").await;
        begin_long_connection(&skep, vm).await;
        let old = recorded(skep.data_dir.path());
        let skep = restart_with_another_protocol(skep).await;
        eventually("the new process", async || recorded(skep.data_dir.path()) != old).await;
        assert!(is_alive(old));
        let skep = skep.stop_and_leave_vms().start_with(&OPTIONS).await;
        eventually("the end of the old process", async || !is_alive(old)).await;
        assert_eq!(fetch(&skep, vm, "http://api.test/").await.as_deref(), Ok("world api.test"));
    });
}

/// Starts skep again as a release whose egress process speaks another protocol than the one that runs.
async fn restart_with_another_protocol(skep: Skep) -> Skep {
    let path = record_path(skep.data_dir.path());
    let stopped = skep.stop_and_leave_vms();
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    record["protocol"] = json!(0);
    fs::write(&path, record.to_string()).unwrap();
    stopped.start_with(&OPTIONS).await
}

#[test]
fn a_vm_with_an_open_connection_is_not_idle() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vms = [boot(&skep, json!("all")).await, boot(&skep, json!("all")).await];
        let [connected, control] = vms;
        begin_long_connection(&skep, connected).await;
        // The control has what the other one has, but for the connection.
        skep.output(control, "sleep 100000 > /dev/null 2>&1 &").await;
        let change = json!({"idle_timeout_ms": 1000});
        for vm in vms {
            send(skep.request(Method::PATCH, &format!("/api/swarm/vm/{vm}")).json(&change)).await.ok(200);
        }
        let paused_by =
            async |vm| skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200)["paused_by"].clone();
        for _ in 0..2 {
            eventually("a pause of the control", async || paused_by(control).await == "idle").await;
            assert_eq!(paused_by(connected).await, Value::Null);
            skep.output(control, "true").await;
        }
        skep.output(connected, "pkill curl").await;
        eventually("a pause after the connection", async || paused_by(connected).await == "idle").await;
    });
}
