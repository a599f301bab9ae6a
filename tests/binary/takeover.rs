//! VMs survive the end of the server and of the keeper; resources without an owner are removed.

mod records;
mod thorough;

use std::{collections::BTreeSet, fs, pin::Pin};

use eventsource_stream::Eventsource;
use futures_util::{Stream, StreamExt};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::harness::{Skep, eventually, kill, remains_of, remains_of_vms, send};

/// Which process is killed, without a chance to clean up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Victim {
    Server,
    Keeper,
    Both,
}

pub(crate) const VICTIMS: [Victim; 3] = [Victim::Server, Victim::Keeper, Victim::Both];

impl Victim {
    /// Kills the process, and returns the next server.
    pub(crate) async fn kill(self, skep: Skep) -> Skep {
        let server = skep.server_pid();
        match (self, server) {
            (Self::Server, Some(server)) => {
                kill(server);
                skep.wait_for_server_after(server).await;
                skep
            }
            (Self::Both, Some(server)) => {
                kill(server);
                skep.crash().start().await
            }
            _ => skep.crash().start().await,
        }
    }
}

pub(crate) fn ids(vms: &[Value]) -> BTreeSet<String> {
    vms.iter().map(|vm| vm["id"].as_str().unwrap().to_owned()).collect()
}

/// The VMs of the status, which has none on disk, and then those that only the list of VMs has.
pub(crate) async fn listed(skep: &Skep) -> Vec<Value> {
    let vms_of = async |path: &str| skep.get(path).await.ok(200)["vms"].as_array().unwrap().clone();
    let mut vms = vms_of("/api/swarm/status").await;
    let known = ids(&vms);
    let others = vms_of("/api/vms?limit=1000").await;
    vms.extend(others.into_iter().filter(|vm| !known.contains(vm["id"].as_str().unwrap())));
    vms
}

/// Fails unless exactly the VMs that are listed are there, each with all that it needs, and each answers.
pub(crate) async fn assert_in_order(skep: &Skep) {
    let vms = listed(skep).await;
    let wanted = ids(&vms);
    for (kind, _) in remains_of_vms(skep.data_dir.path()) {
        eventually(&format!("exactly the {kind} of {wanted:?}"), async || {
            remains_of_vms(skep.data_dir.path()).into_iter().any(|(of, found)| of == kind && found == wanted)
        })
        .await;
    }
    // The keeper removes the tap of a VM after its record.
    eventually(&format!("{} taps", vms.len()), async || taps(skep) == vms.len()).await;
    for vm in &vms {
        let name = vm["id"].as_str().unwrap().replace('_', "-");
        assert_eq!(skep.output(vm["pid"].as_u64().unwrap(), "uname -n").await, name);
    }
}

/// The number of taps in the network namespace of the VMs.
fn taps(skep: &Skep) -> usize {
    let links =
        std::process::Command::new("ip").args(["-n", &skep.namespace(), "-o", "link"]).output().unwrap();
    String::from_utf8_lossy(&links.stdout).matches(": vm").count()
}

/// The received output and events of a command's stream.
pub(crate) struct Streamed {
    pub(crate) id: String,
    events: Pin<Box<dyn Stream<Item = (String, Value)> + Send>>,
    pub(crate) stdout: String,
    stderr: String,
    stdout_offset: u64,
    stderr_offset: u64,
}

impl Streamed {
    pub(crate) async fn begin(skep: &Skep, pid: u64, command: &str) -> Self {
        let request = json!({"command": command, "stream": true, "timeout": 600_000});
        let path = format!("/api/swarm/vm/{pid}/exec");
        Self::of(skep.request(Method::POST, &path).json(&request).send().await.unwrap())
    }

    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), 200, "{response:?}");
        let id = response.headers()["skep-exec-id"].to_str().unwrap().to_owned();
        let events =
            response.bytes_stream().eventsource().take_while(|event| std::future::ready(event.is_ok()));
        let events = events.map(|event| {
            let event = event.unwrap();
            (event.event, serde_json::from_str(&event.data).unwrap())
        });
        Self {
            id,
            events: Box::pin(events),
            stdout: String::new(),
            stderr: String::new(),
            stdout_offset: 0,
            stderr_offset: 0,
        }
    }

    /// Resumes the stream where it broke off.
    pub(crate) async fn again(self, skep: &Skep, pid: u64) -> Self {
        let (out, err) = (self.stdout_offset, self.stderr_offset);
        let path = format!("/api/swarm/vm/{pid}/exec/{}?stdout={out}&stderr={err}", self.id);
        let next = Self::of(skep.request(Method::GET, &path).send().await.unwrap());
        assert_eq!(next.id, self.id);
        Self { events: next.events, ..self }
    }

    /// The next event that is no output; `None` where the stream broke.
    pub(crate) async fn rest(&mut self) -> Option<(String, Value)> {
        while let Some((kind, data)) = self.events.next().await {
            if !self.take(&kind, &data) {
                return Some((kind, data));
            }
        }
        None
    }

    pub(crate) async fn wait_for_output(&mut self, bytes: usize) {
        while self.stdout.len() < bytes {
            let (kind, data) = self.events.next().await.unwrap();
            assert!(self.take(&kind, &data), "{kind}: {data}");
        }
    }

    fn take(&mut self, kind: &str, data: &Value) -> bool {
        let (text, offset) = match kind {
            "stdout" => (&mut self.stdout, &mut self.stdout_offset),
            "stderr" => (&mut self.stderr, &mut self.stderr_offset),
            _ => return false,
        };
        text.push_str(data["data"].as_str().unwrap());
        *offset = data["offset"].as_u64().unwrap();
        assert_eq!(*offset, text.len() as u64, "a byte was lost or came twice");
        true
    }
}

/// Prints for some seconds, with characters of more than one byte, then waits for a file, and ends with 7.
const TALK: &str = "rm -f go; n=0; while [ $n -lt 200 ]; do echo \"zeile $n für wen\"; n=$((n+1)); \
                    [ $((n % 20)) = 0 ] && sleep 0.2; done; until [ -e go ]; do sleep 0.2; done; \
                    echo over >&2; exit 7";

fn talk() -> String {
    (0..200).map(|n| format!("zeile {n} für wen\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_and_their_commands_survive_a_killed_server_or_keeper() {
    vms_and_their_commands_survive(&[Victim::Server, Victim::Keeper]).await;
}

async fn vms_and_their_commands_survive(victims: &[Victim]) {
    let mut skep = Skep::start().await;
    let request = json!({"count": 2, "env": {"WORD": "kept"}, "metadata": {"team": "blue"}});
    let before = skep.post("/api/swarm/boot", &request).await.ok(201)["vms"].as_array().unwrap().clone();
    let pid = before[0]["pid"].as_u64().unwrap();
    for victim in victims.iter().copied() {
        let mut streamed = Streamed::begin(&skep, pid, TALK).await;
        streamed.wait_for_output(1000).await;
        skep = victim.kill(skep).await;
        assert_eq!(streamed.rest().await, None, "{victim:?}: the stream did not break");

        let mut streamed = streamed.again(&skep, pid).await;
        skep.output(pid, "touch go").await;
        let (kind, exit) = streamed.rest().await.unwrap();
        assert_eq!(
            (kind.as_str(), &exit["exit_code"], &exit["truncated"]),
            ("exit", &json!(7), &json!(false))
        );
        assert_eq!((&streamed.stdout, streamed.stderr.as_str()), (&talk(), "over\n"), "{victim:?}");
        // The complete output can be read again shortly after the end.
        let path = format!("/api/swarm/vm/{pid}/exec/{}", streamed.id);
        let mut whole = Streamed::of(skep.request(Method::GET, &path).send().await.unwrap());
        whole.rest().await.unwrap();
        assert_eq!(whole.stdout, talk(), "{victim:?}");

        let after = listed(&skep).await;
        for (before, after) in before.iter().zip(&after) {
            for fact in ["id", "pid", "ip", "started_at", "metadata", "boot", "template"] {
                assert_eq!(before[fact], after[fact], "{victim:?}: {fact}");
            }
            assert!(after["uptime"].as_f64() > before["uptime"].as_f64(), "{victim:?}: {after}");
        }
        assert_eq!(skep.output(pid, "echo $WORD").await, "kept", "{victim:?}");
        assert_in_order(&skep).await;
    }
    skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
    assert_in_order(&skep).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_of_an_unanswered_boot_end() {
    vms_of_an_unanswered_boot_end_after(&[Victim::Server, Victim::Keeper]).await;
}

async fn vms_of_an_unanswered_boot_end_after(victims: &[Victim]) {
    let mut skep = Skep::start().await;
    let vm = skep.boot(1).await;
    let (kept, vmm) = (ids(&vm), u32::try_from(vm[0]["pid"].as_u64().unwrap()).unwrap());
    for victim in victims.iter().copied() {
        let boot = tokio::spawn(boot_with_key(&skep).send());
        // The boot does not end while a VMM of it stands still.
        eventually("a VM that is half made", async || !skep.stop_vmms_except(&[vmm]).is_empty()).await;
        skep = victim.kill(skep).await;
        assert!(boot.await.unwrap().is_err(), "{victim:?}: the boot was faster than the test");
        assert_eq!(ids(&listed(&skep).await), kept, "{victim:?}");
        assert_in_order(&skep).await;
    }
    // The interrupted boots left no VMs, so a repetition with the same key boots them.
    let answer = send(boot_with_key(&skep)).await;
    assert!(!answer.headers.contains_key("idempotent-replayed"), "{answer:?}");
    let booted = ids(answer.ok(201)["vms"].as_array().unwrap());
    let answer = send(boot_with_key(&skep)).await;
    assert_eq!(answer.headers["idempotent-replayed"], "true");
    assert_eq!(ids(answer.ok(201)["vms"].as_array().unwrap()), booted);
    let all: BTreeSet<String> = kept.union(&booted).cloned().collect();
    assert_eq!((booted.len(), ids(&listed(&skep).await)), (4, all));
}

/// A boot of more VMs than a machine boots between two polls.
fn boot_with_key(skep: &Skep) -> RequestBuilder {
    let request = skep.request(Method::POST, "/api/swarm/boot").header("idempotency-key", "once");
    request.json(&json!({"count": 4}))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_end_of_a_vm_is_complete_or_has_no_effect() {
    an_interrupted_end_is_complete_or_has_no_effect(&[Victim::Keeper]).await;
}

async fn an_interrupted_end_is_complete_or_has_no_effect(victims: &[Victim]) {
    let mut skep = Skep::start().await;
    let kept = ids(&skep.boot(1).await);
    for victim in victims.iter().copied() {
        let vm = skep.boot(1).await.remove(0);
        let path = format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap());
        let end = tokio::spawn(skep.request(Method::DELETE, &path).send());
        tokio::task::yield_now().await;
        skep = victim.kill(skep).await;
        let confirmed = matches!(end.await.unwrap(), Ok(answer) if answer.status() == 200);
        let left = ids(&listed(&skep).await);
        assert!(left.is_superset(&kept), "{victim:?}");
        assert!(!confirmed || left == kept, "{victim:?}: an end was confirmed, and the VM lives");
        assert_in_order(&skep).await;
        if left != kept {
            skep.delete(&path).await.ok(200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_survive_a_restart_and_their_ttl_continues() {
    let skep = Skep::start().await;
    let pid = skep.boot_one().await;
    skep.output(pid, "echo before > /root/file; echo old-console > /dev/console").await;
    let brief = skep.boot(1).await.remove(0)["id"].as_str().unwrap().to_owned();
    // Its time begins with this request, so that only the stop of the server has to be faster.
    let change = skep.request(Method::PATCH, &format!("/api/swarm/vm/{brief}"));
    send(change.json(&json!({"ttl_ms": 10_000}))).await.ok(200);
    let wreck = skep.stop_and_leave_vms();
    let log = fs::read_to_string(wreck.path().join("test.log")).unwrap();
    assert!(log.contains("2 VMs live on") && log.contains("skep doctor --clean"), "{log}");
    let skep = wreck.start().await;
    assert_eq!(skep.output(pid, "cat /root/file").await, "before");
    eventually("the end of a time to live", async || {
        skep.get(&format!("/api/swarm/vm/{brief}")).await.status == 404
    })
    .await;
    assert!(skep.log().contains("expired"), "{}", skep.log());
    skep.output(pid, "echo new-console > /dev/console").await;
    eventually("the new console", async || {
        let console = skep.get(&format!("/api/swarm/vm/{pid}/console")).await.ok(200);
        console["console"].as_str().unwrap().contains("new-console")
    })
    .await;
    assert_in_order(&skep).await;
    // Ctrl-C also ends VMs that a restart took over.
    let dir = skep.stop_and_leave_vms().start().await.stop();
    assert_eq!(remains_of(dir.path()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_come_back_to_is_one_of_that_vm() {
    let skep = Skep::start().await;
    let vms = skep.boot(2).await;
    let pids: Vec<u64> = vms.iter().map(|vm| vm["pid"].as_u64().unwrap()).collect();
    let mut streamed = Streamed::begin(&skep, pids[0], "echo one").await;
    streamed.rest().await.unwrap();
    let path = |pid: u64, id: &str| format!("/api/swarm/vm/{pid}/exec/{id}");
    let id = streamed.id.clone();
    skep.get(&path(pids[1], &id)).await.refused(404, "unknown_exec");
    for wrong in ["none", "..%2Fidentity", "a%3Fstdout=1", "%20", &"a".repeat(65)] {
        skep.get(&path(pids[0], wrong)).await.refused(404, "unknown_exec");
    }
    skep.get(&path(1, &id)).await.refused(404, "unknown_vm");
    for wrong in ["stdout=x", "stdout=-1", "offset=1"] {
        assert_eq!(skep.get(&format!("{}?{wrong}", path(pids[0], &id))).await.status, 400, "{wrong}");
    }
    let bare = send(skep.bare(Method::GET, &path(pids[0], &id))).await;
    assert_eq!(bare.status, 401);
    // Beyond the end there is only the exit.
    let beyond = format!("{}?stdout=1000", path(pids[0], &id));
    let mut beyond = Streamed::of(skep.request(Method::GET, &beyond).send().await.unwrap());
    assert_eq!(beyond.rest().await.unwrap().0, "exit");
    assert_eq!(beyond.stdout, "");
}
