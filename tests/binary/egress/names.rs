//! The names that VMs of other accounts use.

use serde_json::{Value, json};
use skep_harness::temp_dir;

use super::{OPTIONS, World, boot, fetch};
use crate::{
    copies::{fork, path_of, pid_of},
    harness::Skep,
    metrics::value,
};

#[test]
fn a_vm_neither_uses_nor_learns_the_names_of_other_accounts() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let vm = boot(&skep, json!("all")).await;
        let look_up = "getent ahostsv4 a.wild.test | head -n 1 | cut -d ' ' -f 1";
        let address = skep.output(vm, look_up).await.trim().to_owned();
        let url = format!("http://{address}/");
        // The control: a copy has the address in its memory, and may use it.
        let record = skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200);
        let copy = fork(&skep, &record, &json!({})).await.remove(0);
        assert_eq!(fetch(&skep, pid_of(&copy), &url).await, Ok(format!("world {address}")));
        let report = skep.get(&format!("{}/egress", path_of(&copy))).await.ok(200);
        assert!(report.to_string().contains("a.wild.test"), "{report}");

        let acme = skep.tenant("acme").await;
        let other = acme.post("/api/swarm/boot", &json!({"egress": "all"})).await.ok(201)["vms"][0].clone();
        let run = async |command: &str| -> Value {
            let call = format!("{}/exec", path_of(&other));
            acme.post(&call, &json!({"command": command})).await.ok(200)
        };
        let tried = run(&format!("curl -sS -m 20 {url}")).await;
        assert!([7, 52, 55, 56].map(Value::from).contains(&tried["exit_code"]), "{tried}");
        let report = acme.get(&format!("{}/egress", path_of(&other))).await.ok(200);
        let reason = "the address is a placeholder address of no name that the VM has looked up";
        assert!(report.to_string().contains(reason) && !report.to_string().contains("wild.test"), "{report}");
        // The name is not the other account's alone.
        let tried = run("curl -sS -m 20 http://a.wild.test/").await;
        assert_eq!(tried["stdout"], "world a.wild.test\n", "{tried}");

        let metrics = skep.get("/metrics").await.ok(200);
        assert!(value(metrics.as_str().unwrap(), "skep_egress_names") >= 1.0, "{metrics}");
    });
}
