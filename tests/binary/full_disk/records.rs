//! The disk of the store is full when a copy, a pause to disk or a resume is to be recorded: the call is refused, the VM is what it
//! was, nothing half-made is left, and the next server finds what was answered.
//!
//! Files of VMs and templates are on a large disk. On the small one, the log of the store cannot become so long that it begins anew
//! and reuses its space.

mod thorough;

use std::{collections::BTreeSet, fs, path::PathBuf};

use reqwest::Method;
use serde_json::{Value, json};

use super::{fill, on_a_small_disk};
use crate::{
    copies::{State, assert_goes_on, begin, fork, path_of},
    harness::{Answer, Skep, eventually, remains_of_vms, send},
    takeover::{Victim, ids, listed},
};

/// So many refused changes in a row show that not even one page fits: a single one may share its commit with other writes.
const REFUSED_CHANGES: u32 = 3;

/// A VM on a server whose store has a small disk.
struct Fixture {
    skep: Skep,
    filler: PathBuf,
    /// As it was booted.
    vm: Value,
    wanted: State,
    /// The last number of its program that was seen.
    count: u64,
}

impl Fixture {
    async fn new() -> Self {
        let (skep, folder) = on_a_small_disk().await;
        let vm = skep.boot(1).await.remove(0);
        let wanted = begin(&skep, &vm).await;
        Self { skep, filler: folder.join("filler"), vm, wanted, count: 1 }
    }

    async fn call(&self, verb: &str, body: &Value) -> Answer {
        self.skep.post(&format!("{}/{verb}", path_of(&self.vm)), body).await
    }

    async fn to_disk(&self) -> Answer {
        self.call("pause", &json!({"to": "disk"})).await
    }

    /// A change of the VM's record, which takes one page of the store.
    async fn change(&self, number: u32) -> Answer {
        let change = json!({"metadata": {"number": number}});
        send(self.skep.request(Method::PATCH, &path_of(&self.vm)).json(&change)).await
    }

    /// Fills the disk, and the files of the store.
    async fn fill(&self) {
        fill(&self.filler);
        let (mut number, mut refused) = (0, 0);
        while refused < REFUSED_CHANGES {
            let answer = self.change(number).await;
            refused = if answer.status == 200 { 0 } else { refused + 1 };
            number += 1;
            assert!(number < 5000, "the disk never fills");
        }
    }

    async fn free(&self) {
        self.free_without_records();
        eventually("room", async || self.change(0).await.status == 200).await;
    }

    fn free_without_records(&self) {
        fs::remove_file(&self.filler).unwrap();
    }

    /// The same with another server.
    async fn with_server_killed(self) -> Self {
        Self { skep: Victim::Server.kill(self.skep).await, ..self }
    }

    /// The server has this VM only, with all that it needs, and so many folders of templates besides `base`.
    async fn has_only(&self, what: &str, with_vmm: bool, folders: usize) {
        let vms = listed(&self.skep).await;
        assert_eq!(ids(&vms), ids(std::slice::from_ref(&self.vm)), "{what}");
        let wanted = if with_vmm { ids(&vms) } else { BTreeSet::new() };
        let data_dir = self.skep.data_dir.path();
        for (kind, _) in remains_of_vms(data_dir) {
            eventually(&format!("exactly the {kind} of {wanted:?} after {what}"), async || {
                remains_of_vms(data_dir).into_iter().any(|(of, found)| of == kind && found == wanted)
            })
            .await;
        }
        eventually(&format!("{folders} folders after {what}"), async || {
            fs::read_dir(data_dir.join("templates")).into_iter().flatten().count() == folders
        })
        .await;
    }

    /// The VM runs, and has its memory and its files.
    async fn runs_on(&mut self, what: &str) {
        let record = self.skep.get(&path_of(&self.vm)).await.ok(200);
        assert_eq!(record["state"], "running", "{what}: {record}");
        self.count = assert_goes_on(&self.skep, &record, &self.wanted, self.count).await;
    }

    async fn is_on_disk(&self, what: &str) {
        let record = self.skep.get(&path_of(&self.vm)).await.ok(200);
        assert_eq!((&record["state"], &record["paused_to"]), (&json!("paused"), &json!("disk")), "{what}");
        self.has_only(what, false, 1).await;
    }

    async fn has_only_the_base_template(&self, what: &str) {
        let list = self.skep.get("/api/templates").await.ok(200);
        let names: Vec<&Value> =
            list["templates"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["base"], "{what}");
    }
}

fn is_refused(what: &str, answer: &Answer) {
    let message = answer.refused(503, "store_unavailable");
    assert!(message.contains("try again"), "{what}: {message}");
    assert!(answer.headers.contains_key("retry-after"), "{what}: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_and_pauses_that_cannot_be_recorded_leave_the_vm_running_and_nothing_else() {
    let mut fixture = Fixture::new().await;
    fixture.fill().await;
    let calls = [
        ("pause", json!({"to": "disk"})),
        ("pause", json!({})),
        ("fork", json!({"count": 2})),
        ("snapshot", json!({"name": "stored"})),
    ];
    for (verb, body) in calls {
        let what = format!("{verb} {body}");
        is_refused(&what, &fixture.call(verb, &body).await);
        fixture.has_only(&what, true, 0).await;
        fixture.has_only_the_base_template(&what).await;
        fixture.runs_on(&what).await;
    }

    fixture.free().await;
    let mut fixture = fixture.with_server_killed().await;
    fixture.has_only("the next server", true, 0).await;
    fixture.runs_on("the next server").await;
    let copy = fork(&fixture.skep, &fixture.vm, &json!({})).await.remove(0);
    assert_goes_on(&fixture.skep, &copy, &fixture.wanted, fixture.count).await;
    fixture.skep.delete(&path_of(&copy)).await.ok(200);
    fixture.to_disk().await.ok(200);
    fixture.is_on_disk("a pause with room").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_that_cannot_be_recorded_leaves_the_vm_on_disk_and_an_end_frees_its_space() {
    let fixture = Fixture::new().await;
    fixture.to_disk().await.ok(200);
    fixture.is_on_disk("a pause").await;
    fixture.fill().await;
    for round in 0..2 {
        let what = format!("resume {round}");
        is_refused(&what, &fixture.call("resume", &json!({})).await);
        fixture.is_on_disk(&what).await;
        assert_eq!(fixture.skep.vmms(), Vec::<u32>::new(), "{what}");
    }

    fixture.free().await;
    let mut fixture = fixture.with_server_killed().await;
    fixture.is_on_disk("the next server").await;
    fixture.call("resume", &json!({})).await.ok(200);
    fixture.runs_on("a resume with room").await;
    fixture.has_only("a resume with room", true, 0).await;

    // The end of a VM on disk frees its space first, which may be what the store lacks.
    fixture.to_disk().await.ok(200);
    fixture.is_on_disk("a second pause").await;
    fixture.fill().await;
    is_refused("an end", &send(fixture.skep.request(Method::DELETE, &path_of(&fixture.vm))).await);
    fixture.has_only("an end that is not on record", false, 0).await;
    fixture.free_without_records();
    eventually("the end", async || listed(&fixture.skep).await.is_empty()).await;
}
