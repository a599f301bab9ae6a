//! Snapshots of VMs, which are templates: VMs of them continue where the original was. Damage of their files is found
//! before they are used.

mod thorough;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::{
    clones::{UNIQUE, shared},
    copies::{assert_goes_on, begin, path_of, pid_of, state},
    forks::inheritance::{TRACES_OF_TICKET, VARIABLES},
    harness::{Skep, command, eventually, images::flip_a_bit, kill, output_of, step},
    takeover::{Victim, assert_in_order, listed},
    vm_api::{is_silent, status},
};

async fn snapshot(skep: &Skep, vm: &Value, name: &str) -> Value {
    let stored = skep.post(&format!("{}/snapshot", path_of(vm)), &json!({"name": name})).await.ok(201);
    assert_eq!((&stored["name"], &stored["state"]), (&json!(name), &json!("ready")), "{stored}");
    stored
}

async fn boot(skep: &Skep, template: &str, count: u32) -> Vec<Value> {
    let request = json!({"template": template, "count": count});
    skep.post("/api/swarm/boot", &request).await.ok(201)["vms"].as_array().unwrap().clone()
}

/// The folder of a template, and that with its files.
fn folder_of(data_dir: &Path, template: &Value) -> PathBuf {
    data_dir.join("templates").join(template["id"].as_str().unwrap())
}

fn files_of(data_dir: &Path, template: &Value) -> PathBuf {
    let entries = fs::read_dir(folder_of(data_dir, template)).unwrap().map(|entry| entry.unwrap().path());
    let dirs: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    let [dir] = dirs.as_slice() else { panic!("{dirs:?}") };
    dir.clone()
}

fn folders(skep: &Skep) -> usize {
    fs::read_dir(skep.data_dir.path().join("templates")).into_iter().flatten().count()
}

fn run(skep: &Skep, words: &[&str]) -> String {
    let output = output_of(&mut command(skep, words));
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn vms_of_a_snapshot_continue_where_the_original_was() {
    let skep = Skep::start().await;
    let ticket = skep.post("/api/tickets", &json!({"title": "of the original"})).await.ok(201);
    let order = json!({"ticket": ticket["id"], "env": {"WORD": "secret"}, "metadata": {"team": "blue"}});
    let original = skep.post("/api/swarm/boot", &order).await.ok(201)["vms"][0].clone();
    let wanted = begin(&skep, &original).await;
    let (_, from) = state(&skep, &original).await;
    let installed = snapshot(&skep, &original, "installed").await;
    assert_eq!((&installed["source"], &installed["parent"]), (&json!("vm"), &json!("base")), "{installed}");
    assert!(installed["own_bytes"].as_u64() > Some(0) && files_of(skep.data_dir.path(), &installed).is_dir());
    skep.output(pid_of(&original), "echo later > /root/later; echo later > /dev/shm/later").await;
    assert_goes_on(&skep, &original, &wanted, from).await;

    let copies = boot(&skep, "installed", 2).await;
    let mut answers = vec![skep.output(pid_of(&original), UNIQUE).await];
    for copy in &copies {
        assert_eq!((&copy["template"], &copy["parent"]), (&json!("installed"), &Value::Null), "{copy}");
        assert_eq!(copy["metadata"], json!({}), "{copy}");
        assert_goes_on(&skep, copy, &wanted, from).await;
        let found = skep.output(pid_of(copy), "echo /root/* /dev/shm/*; echo word: $WORD").await;
        assert!(!found.contains("later") && found.ends_with("word:"), "{found}");
        answers.push(skep.output(pid_of(copy), UNIQUE).await);
    }
    assert_eq!(skep.output(pid_of(&original), "echo $WORD").await, "secret", "the control");
    assert_eq!(shared(&answers), BTreeMap::new());
    step("the ticket", has_nothing_of_the_ticket(&skep, &original, &copies[0])).await;
    is_refused(&skep, &original).await;
    is_taken_of_a_copy_by_the_command(&skep, &copies[0]).await;
    is_deleted_when_nothing_needs_it(&skep, &installed).await;
    assert_in_order(&skep).await;
    assert_events_and_no_files(&skep, &original, &installed);
}

/// A VM of a snapshot has neither the ticket nor the key of the original, although both were in the memory of the original.
async fn has_nothing_of_the_ticket(skep: &Skep, original: &Value, copy: &Value) {
    assert_eq!(copy["ticket"], Value::Null, "{copy}");
    let traces = async |vm: &Value| skep.output(pid_of(vm), TRACES_OF_TICKET).await;
    assert_eq!(traces(original).await, format!("{VARIABLES}\nticket.json"), "the control");
    assert_eq!(traces(copy).await, "");
    let access = skep.output(pid_of(original), "echo $SKEP_URL/api/whoami $SKEP_API_KEY").await;
    let (whoami, key) = access.split_once(' ').unwrap();
    assert_eq!(status(skep, pid_of(original), whoami, key).await, "200");
    assert!(is_silent(skep, pid_of(copy), whoami, key).await, "the copy made a connection");
}

async fn is_refused(skep: &Skep, original: &Value) {
    let (path, before) = (format!("{}/snapshot", path_of(original)), folders(skep));
    let take = async |path: &str, body: Value| skep.post(path, &body).await;
    assert!(take(&path, json!({"name": "installed"})).await.refused(409, "name_taken").contains("installed"));
    assert!(take(&path, json!({"name": "Not A Name"})).await.refused(400, "invalid_value").contains("name"));
    take(&path, json!({"name": "other", "size": 1})).await.refused(400, "unknown_field");
    let ended = "/api/swarm/vm/vm_00000000000000000000000000/snapshot";
    take(ended, json!({"name": "other"})).await.refused(404, "unknown_vm");
    let tenant = skep.tenant("acme").await;
    tenant.post(&path, &json!({"name": "other"})).await.refused(404, "unknown_vm");
    let fork_path = format!("{}/fork", path_of(original));
    tenant.post(&fork_path, &json!({})).await.refused(404, "unknown_vm");
    skep.post(&fork_path, &json!({"template": "base"})).await.refused(400, "invalid_value");

    skep.post(&format!("{}/pause", path_of(original)), &json!({})).await.ok(200);
    take(&path, json!({"name": "other"})).await.refused(409, "vm_paused");
    take(&fork_path, json!({})).await.refused(409, "vm_paused");
    skep.post(&format!("{}/resume", path_of(original)), &json!({})).await.ok(200);
    skep.get("/api/templates/other").await.refused(404, "unknown_template");
    assert_eq!(folders(skep), before, "a refused snapshot left files");
}

async fn is_taken_of_a_copy_by_the_command(skep: &Skep, copy: &Value) {
    run(skep, &["snapshot", copy["id"].as_str().unwrap(), "child", "--description", "of a copy"]);
    let child = skep.get("/api/templates/child").await.ok(200);
    assert_eq!(
        (&child["parent"], &child["description"]),
        (&json!("installed"), &json!("of a copy")),
        "{child}"
    );
}

async fn is_deleted_when_nothing_needs_it(skep: &Skep, installed: &Value) {
    let message = skep.delete("/api/templates/installed").await;
    assert!(message.refused(409, "template_in_use").contains("vm_"), "{message:?}");
    for vm in listed(skep).await.iter().filter(|vm| vm["template"] == "installed") {
        skep.delete(&path_of(vm)).await.ok(200);
    }
    let message = skep.delete("/api/templates/installed").await;
    assert!(message.refused(409, "template_in_use").contains("child"), "{message:?}");
    let folder = folder_of(skep.data_dir.path(), installed);
    assert!(folder.is_dir());
    run(skep, &["template", "rm", "child"]);
    skep.delete("/api/templates/installed").await.ok(200);
    eventually("the end of the files", async || !folder.exists()).await;
    skep.post("/api/swarm/boot", &json!({"template": "installed"})).await.refused(404, "unknown_template");
}

fn assert_events_and_no_files(skep: &Skep, original: &Value, installed: &Value) {
    let arguments =
        ["events", "--from-start", "--types", "vm.snapshotted,template.ready", "-n", "2", "--json"];
    let events: Vec<Value> =
        run(skep, &arguments).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().find(|event| event["type"] == kind).unwrap();
    let snapshotted = of("vm.snapshotted");
    assert_eq!(
        (&snapshotted["vm"], &snapshotted["template"], &snapshotted["name"]),
        (&original["id"], &installed["id"], &json!("installed"))
    );
    assert_eq!(of("template.ready")["template"], installed["id"]);
    let ended = skep.data_dir.path().join("templates");
    assert_eq!(fs::read_dir(ended).into_iter().flatten().count(), 0);
}

/// What is done to a file of a snapshot.
type Damage = fn(&Path);

/// The name of each snapshot that is damaged, the file, and what is done to it: a file of its own, one that is missing, and one that
/// other templates have too. `thorough` damages each of the other files.
const DAMAGES: [(&str, &str, Damage); 3] = [
    ("of-layer", "layer.ext4", flip_a_bit),
    ("of-state", "state", |path| fs::remove_file(path).unwrap()),
    ("of-root", "root.erofs", |path| in_a_copy(path, flip_a_bit)),
];

fn cut(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 16).unwrap();
}

/// Damages a file that other templates have links to: they keep theirs.
fn in_a_copy(path: &Path, damage: Damage) {
    let copy = path.with_extension("copy");
    fs::copy(path, &copy).unwrap();
    damage(&copy);
    fs::rename(copy, path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_outlive_everything_and_damage_is_found_before_use() {
    let skep = Skep::start().await;
    let original = skep.boot(1).await.remove(0);
    let wanted = begin(&skep, &original).await;
    let (_, from) = state(&skep, &original).await;
    let intact = snapshot(&skep, &original, "intact").await;
    let stored = snapshots(&skep, &original, &DAMAGES).await;
    let server = skep.server_pid().unwrap();
    skep.post("/api/admin/restart", &json!({})).await.ok(202);
    skep.wait_for_server_after(server).await;
    let vm = boot(&skep, "of-layer", 1).await.remove(0);
    assert_goes_on(&skep, &vm, &wanted, from).await;

    for vmm in skep.vmms() {
        kill(vmm);
    }
    let skep = Victim::Both.kill(skep).await;
    // A killed process may end after the takeover.
    eventually("the end of all VMs", async || skep.count().await == 0).await;
    let vm = boot(&skep, "intact", 1).await.remove(0);
    assert_goes_on(&skep, &vm, &wanted, from).await;

    let skep = damaged(skep, &stored, &DAMAGES).await;
    // The control.
    assert_eq!(skep.get("/api/templates/intact").await.ok(200)["id"], intact["id"]);
    let vm = boot(&skep, "intact", 1).await.remove(0);
    assert_goes_on(&skep, &vm, &wanted, from).await;
    assert_eq!(skep.count().await, 1);
}

/// A snapshot for each of these damages.
async fn snapshots(skep: &Skep, vm: &Value, damages: &[(&str, &str, Damage)]) -> Vec<Value> {
    let mut stored = Vec::new();
    for (name, ..) in damages {
        stored.push(snapshot(skep, vm, name).await);
    }
    stored
}

/// Damages these snapshots, and returns a server that has found all of it.
async fn damaged(skep: Skep, stored: &[Value], damages: &[(&str, &str, Damage)]) -> Skep {
    // A loaded template is in sealed memory, so only the next keeper meets the damage.
    let data_dir = skep.stop();
    for ((_, file, damage), template) in damages.iter().zip(stored) {
        damage(&files_of(data_dir.path(), template).join(file));
    }
    let skep = Skep::start_on(data_dir, &[]).await;
    let files: Vec<(&str, &str)> = damages.iter().map(|(name, file, _)| (*file, *name)).collect();
    each_is_damaged_on_record(&skep, &files).await;
    skep
}

async fn each_is_damaged_on_record(skep: &Skep, damaged: &[(&str, &str)]) {
    for (file, name) in damaged {
        is_never_served(skep, name, file).await;
    }
    for (file, name) in damaged {
        let path = format!("/api/templates/{name}");
        eventually("the record of the damage", async || skep.get(&path).await.ok(200)["state"] == "damaged")
            .await;
        is_never_served(skep, name, file).await;
        the_operator_sees_the_damage(skep, &path, file).await;
        skep.delete(&path).await.ok(200);
    }
}

async fn the_operator_sees_the_damage(skep: &Skep, path: &str, file: &str) {
    let template = skep.get(path).await.ok(200);
    let system = skep.get("/api/system").await.ok(200);
    let damaged = system["swarm"]["damaged_templates"].as_array().unwrap();
    let entry = damaged.iter().find(|entry| entry["template"] == template["id"]);
    let message = entry.unwrap_or_else(|| panic!("{system}"))["message"].as_str().unwrap();
    assert!(message.contains(file), "{message}");
}

async fn is_never_served(skep: &Skep, name: &str, file: &str) {
    let refused = skep.post("/api/swarm/boot", &json!({"template": name})).await;
    assert!(refused.refused(422, "template_damaged").contains(file), "{file}: {refused:?}");
}
