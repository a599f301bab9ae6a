//! Guests that send with the address of another VM.

use serde_json::json;
use skep_harness::{eventually, temp_dir};

use crate::{
    egress::{OPTIONS, boot, fetch, python, world::World},
    harness::Skep,
    spoofing::in_namespace,
};

/// Asks the forwarder for a name that no policy allows, with this address as the sender.
const ASK: &str = r#"
import re, socket, sys
sender, name = sys.argv[1], sys.argv[2].encode()
forwarder = re.search(r"nameserver (\S+)", open("/etc/resolv.conf").read())[1]
asked = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asked.bind((sender, 0))
query = b"\0\1\1\0\0\1\0\0\0\0\0\0" + bytes([len(name)]) + name + b"\6forged\0\0\1\0\1"
asked.sendto(query, (forwarder, 53))
"#;

/// What is listed of a VM that it tried.
async fn tries(skep: &Skep, vm: u64) -> String {
    skep.get(&format!("/api/swarm/vm/{vm}/egress")).await.ok(200)["tries"].to_string()
}

#[test]
fn a_guest_that_takes_the_address_of_another_vm_does_nothing_in_its_name() {
    World::run(async || {
        let skep = Skep::start_on(temp_dir(), &OPTIONS).await;
        let allow = json!({"allow": ["api.test", "203.0.113.8"]});
        let [victim, attacker] =
            [boot(&skep, allow).await, boot(&skep, json!({"allow": ["api.test"]})).await];
        let address = async |vm: u64| {
            skep.get(&format!("/api/swarm/vm/{vm}")).await.ok(200)["ip"].as_str().unwrap().to_owned()
        };
        let (other, own) = (address(victim).await, address(attacker).await);
        skep.output(attacker, &format!("ip address add {other}/32 dev eth0")).await;

        python(&skep, attacker, ASK, &format!("{other} before")).await;
        // The own address, whose query arrives after the forged one. A datagram may be lost, so it is sent again.
        eventually("the honest query", async || {
            python(&skep, attacker, ASK, &format!("{own} honest")).await;
            tries(&skep, attacker).await.contains("honest.forged")
        })
        .await;
        assert_eq!(tries(&skep, victim).await, "[]");
        // A connection that the policy of the other VM allows.
        let connect = format!("-m 5 --interface {other} http://203.0.113.8/");
        assert_eq!(fetch(&skep, attacker, &connect).await, Err(28), "it times out");
        assert_eq!(tries(&skep, victim).await, "[]");
        assert_eq!(
            fetch(&skep, victim, "http://203.0.113.8/").await.as_deref(),
            Ok("world 203.0.113.8"),
            "the control"
        );

        // The control: without the filter of senders the forged query counts as one of the other VM.
        in_namespace(&skep, "nft delete table bridge skep");
        eventually("the forged query", async || {
            python(&skep, attacker, ASK, &format!("{other} after")).await;
            tries(&skep, victim).await.contains("after.forged")
        })
        .await;
    });
}
