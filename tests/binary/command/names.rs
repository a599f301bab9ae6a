//! VMs by name, and commands that run only in the place that was requested.

use serde_json::{Value, json};

use super::{answer, skep, stdout};
use crate::harness::{Skep, binary, eventually, step};

fn stderr(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_goes_by_its_name_wherever_a_verb_takes_one() {
    let server = Skep::start().await;
    let vm =
        &answer(&skep(&server, &["boot", "--name", "web", "--metadata", "job=7", "--json"], ""))["vms"][0];
    assert_eq!(vm["name"], "web");
    let id = vm["id"].as_str().unwrap();
    let (beginning, host_name) = (&id[..20], id.replace('_', "-"));
    for reference in ["web", id, beginning, &host_name, vm["ip"].as_str().unwrap(), &vm["pid"].to_string()] {
        let run = skep(&server, &["exec", reference, "hostname"], "");
        assert_eq!(stdout(&run).trim(), host_name, "{reference}: {run:?}");
        let ls = skep(&server, &["ls", "--vm", reference, "/etc"], "");
        assert!(stdout(&ls).contains("hostname"), "{ls:?}");
        server.get(&format!("/api/swarm/vm/{reference}")).await.ok(200);
        server.get(&format!("/api/files/read?path=/etc/hostname&vm={reference}")).await.ok(200);
    }
    let body = json!({"command": "hostname", "vm": "web"});
    assert_eq!(server.post("/api/exec", &body).await.ok(200)["stdout"], format!("{host_name}\n"));
    assert!(skep(&server, &["write", "--vm", "web", "note"], "by name\n").status.success());
    let here = tempfile::tempdir().unwrap();
    let copy = here.path().join("copy");
    let copied = skep(&server, &["cp", "web:note", copy.to_str().unwrap()], "");
    assert!(copied.status.success(), "{copied:?}");
    assert_eq!(std::fs::read_to_string(copy).unwrap(), "by name\n");

    let taken = skep(&server, &["boot", "--name", "web"], "");
    assert_eq!(taken.status.code(), Some(1), "{taken:?}");
    assert!(stderr(&taken).contains("`web`") && stderr(&taken).contains(id), "{taken:?}");
    assert_eq!(server.count().await, 1);
    let found = server.get("/api/vms?name=web&template=base&metadata.job=7").await.ok(200);
    assert_eq!(found["vms"][0]["id"], id);

    // Its name outlives the server, and can be changed and taken away.
    let server = server.crash().start().await;
    assert!(stdout(&skep(&server, &["ps"], "")).contains(" web "));
    let rename = async |name: Value| {
        let body = json!({"name": name});
        let request = server.request(reqwest::Method::PATCH, &format!("/api/swarm/vm/{id}")).json(&body);
        crate::harness::send(request).await
    };
    assert_eq!(rename(json!("api")).await.ok(200)["name"], "api");
    server.get("/api/swarm/vm/web").await.refused(404, "unknown_vm");
    assert_eq!(rename(Value::Null).await.ok(200)["name"], Value::Null);
    server.get("/api/swarm/vm/api").await.refused(404, "unknown_vm");
    rename(json!("Not a name")).await.refused(400, "invalid_value");
    rename(json!("web")).await.ok(200);
    renamed_by_command(&server, id);
    let output = skep(&server, &["events", "--from-start", "--types", "vm.renamed", "-n", "3", "--json"], "");
    let names: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&names[0]["from"], &names[0]["name"]), (&json!("web"), &json!("api")));
    assert_eq!((&names[1]["from"], &names[1]["name"]), (&json!("api"), &Value::Null));
    assert_eq!(stdout(&skep(&server, &["end", "web"], "")).trim(), format!("{} {id}", vm["pid"]));
    assert_eq!(server.count().await, 0);
}

/// The VM is called `web` before and afterwards.
fn renamed_by_command(server: &Skep, id: &str) {
    let run = |arguments: &[&str]| skep(server, &[&["rename"], arguments].concat(), "");
    assert!(stdout(&run(&["web", "builder-2"])).trim().ends_with(&format!("{id} builder-2")));
    assert_eq!(answer(&run(&["builder-2", "--none", "--json"]))["name"], Value::Null);
    assert_eq!(run(&["builder-2", "other"]).status.code(), Some(1), "it has no name any more");
    for wrong in [&[id][..], &[id, "Not-A-Name"], &[id, "server"], &[id, "a", "--none"], &["", "a"]] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
    let other = answer(&skep(server, &["boot", "--name", "other", "--json"], ""));
    let taken = run(&[id, "other"]);
    assert_eq!(taken.status.code(), Some(1), "{taken:?}");
    assert!(stderr(&taken).contains(other["vms"][0]["id"].as_str().unwrap()), "{taken:?}");
    assert!(skep(server, &["end", "other"], "").status.success());
    assert!(run(&[id, "web"]).status.success());
    in_the_store_too(server, id);
}

/// A key of a VM is made without the API as well, by whatever the VM goes by.
fn in_the_store_too(server: &Skep, id: &str) {
    let pid = answer(&skep(server, &["ps", "--json"], ""))["vms"][0]["pid"].to_string();
    let dir = server.data_dir.path().to_str().unwrap();
    let create = |vm: &str, name: &str| {
        let arguments =
            ["keys", "create", "--role", "vm", "--vm", vm, "--name", name, "--data-dir", dir, "--json"];
        std::process::Command::new(binary()).args(arguments).output().unwrap()
    };
    for (vm, name) in [("web", "a"), (pid.as_str(), "b"), (id, "c"), (&id[..20], "d")] {
        assert_eq!(answer(&create(vm, name))["vm"], id, "{vm}");
    }
    let unknown = create("nobody", "e");
    assert!(!unknown.status.success() && stderr(&unknown).contains("no VM `nobody`"), "{unknown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_runs_where_it_was_asked_to_and_a_key_of_a_vm_learns_no_other_vm() {
    let server = Skep::start().await;
    // Each step leaves a server without VMs to the next one.
    step("no command runs on the server unasked", async { commands_on_the_server(&server) }).await;
    step("a VM for one command", one_command(&server)).await;
    step("the command of a boot is looked at and followed", command_of_a_boot(&server)).await;
    step("keys of VMs", keys_of_vms(&server)).await;
}

async fn keys_of_vms(server: &Skep) {
    let booted = ["own", "web"].map(|name| answer(&skep(server, &["boot", "--name", name, "--json"], "")));
    let key = server.post("/api/keys", &json!({"name": "of own", "role": "vm", "vm": "own"})).await.ok(201);
    assert_eq!(key["vm"], booted[0]["vms"][0]["id"], "a key is bound by the name too");
    let ask = async |vm: &str| {
        let request =
            server.bare(reqwest::Method::POST, "/api/exec").bearer_auth(key["key"].as_str().unwrap());
        crate::harness::send(request.json(&json!({"command": "true", "vm": vm}))).await
    };
    ask("own").await.ok(200);
    let other = booted[1]["vms"][0]["id"].as_str().unwrap();
    for reference in [
        "web",
        "vm_0",
        other,
        &other[..28],
        &other.replace('_', "-"),
        booted[1]["vms"][0]["ip"].as_str().unwrap(),
    ] {
        let message = ask(reference).await.refused(404, "unknown_vm").to_owned();
        // A host name is the id in another spelling.
        let given = reference.replace('-', "_");
        assert!(message.contains(&given) && (given == other || !message.contains(other)), "{message}");
    }
    // The control: the account's own key sees the other VMs.
    let ambiguous = server.get("/api/swarm/vm/vm_0").await;
    assert!(ambiguous.refused(400, "invalid_value").contains(other));
    server.post("/api/swarm/cleanup", &json!({})).await.ok(200);
}

fn commands_on_the_server(server: &Skep) {
    let root = server.data_dir.path().join("workspaces/default");
    for (arguments, why) in [
        (&["exec", "touch ran"][..], "cannot be a VM"),
        (&["exec", "touch", "ran"], "no VM `touch`"),
        (&["exec", "", "touch ran"], "the VM is empty"),
        (&["exec", "--vm", "", "touch ran"], "the VM is empty"),
        (&["exec", "--vm", "nosuchvm", "touch ran"], "no VM `nosuchvm`"),
        (&["exec", "nosuchvm", "touch ran"], "skep exec --server touch ran"),
        (&["exec", "4194303", "--", "touch", "ran"], "no VM `4194303`"),
        (&["exec", "--", "touch", "ran"], "no VM stands before `--`"),
        (&["exec", "-c", "touch ran"], "no VM is given"),
        (&["exec", "-it", "nosuchvm", "touch ran"], "there are no terminals"),
        (&["exec", "--user", "root", "touch", "ran"], "`--user` is not an option"),
        (&["exec", "--server", "--vm", "nosuchvm", "touch ran"], "cannot be used with"),
        (&["ls", "--vm", ""], "the VM is empty"),
        (&["write", "--vm", "", "ran"], "the VM is empty"),
        (&["cp", "/etc/hostname", ":ran"], "the VM before `:` is empty"),
        (&["end", ""], "the VM is empty"),
    ] {
        let refused = skep(server, arguments, "");
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {refused:?}");
        assert!(stderr(&refused).contains(why), "{arguments:?}: {refused:?}");
        assert!(!root.join("ran").exists(), "{arguments:?}");
    }
    // What they would have done.
    let run = skep(server, &["exec", "--server", "mkdir sub; touch ran; pwd"], "");
    assert!(run.status.success() && root.join("ran").exists(), "{run:?}");
    let run = skep(server, &["exec", "--server", "--cwd", "sub", "--", "sh", "-c", "pwd; exit 3"], "");
    assert_eq!((run.status.code(), stdout(&run).trim().ends_with("default/sub")), (Some(3), true), "{run:?}");
}

async fn one_command(server: &Skep) {
    let run = skep(server, &["run", "--rm", "--", "sh", "-c", "cat; echo err >&2; exit 7"], "through\n");
    assert_eq!((run.status.code(), stdout(&run).as_str()), (Some(7), "through\n"), "{run:?}");
    assert_eq!(stderr(&run), "err\n");
    assert_eq!(server.count().await, 0);

    let kept = skep(server, &["run", "--name", "job", "--cwd", "..", "pwd"], "");
    assert_eq!((kept.status.code(), stdout(&kept).as_str()), (Some(0), "/\n"), "{kept:?}");
    assert!(stderr(&kept).contains("`skep end job`"), "{kept:?}");
    assert_eq!(skep(server, &["run", "--name", "job", "true"], "").status.code(), Some(125));
    assert_eq!(skep(server, &["run", "--rm", "-it", "sh"], "").status.code(), Some(2));
    assert_eq!(skep(server, &["run", "--rm"], "").status.code(), Some(2));
    assert_eq!(server.count().await, 1);
    assert!(skep(server, &["rm", "job"], "").status.success(), "`rm` is understood as `end`");
}

async fn command_of_a_boot(server: &Skep) {
    let script = "echo begun; until test -e /root/go; do sleep 0.1; done; printf 'done \\377\\n'; exit 5";
    let arguments = ["boot", "--name", "job", "--command", script, "--ttl", "1h", "--json"];
    let exec_id = answer(&skep(server, &arguments, ""))["vms"][0]["exec_id"].as_str().unwrap().to_owned();
    eventually("the output", async || stdout(&skep(server, &["logs", "job"], "")).ends_with("begun\n")).await;
    let logs = skep(server, &["logs", "job"], "");
    assert!(stderr(&logs).contains(&exec_id), "{logs:?}");
    let console = answer(&skep(server, &["logs", "job", "--json"], ""));
    assert!(console["console"].is_string(), "{console}");
    assert!(!stdout(&skep(server, &["logs", "--console", "job"], "")).contains("begun"));
    let listed = stdout(&skep(server, &["ps"], ""));
    // Some minutes may have passed since the boot.
    let has_time_left = (50..60).any(|minutes| listed.contains(&format!(" {minutes} m")));
    assert!(listed.contains(" job ") && listed.contains("MiB") && has_time_left, "{listed}");

    let missing = skep(server, &["attach", "exec_01jv0000000000000000000000"], "");
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
    assert_eq!(skep(server, &["attach", "--vm", "job", "job"], "").status.code(), Some(2));
    assert!(skep(server, &["write", "--vm", "job", "go"], "").status.success());
    for arguments in [&["attach", "job"][..], &["attach", &exec_id], &["logs", "-f", "job"]] {
        let followed = skep(server, arguments, "");
        // The exact bytes, of which the last is no text.
        assert_eq!(
            (followed.status.code(), followed.stdout.as_slice()),
            (Some(5), &b"begun\ndone \xff\n"[..])
        );
    }
    let logs = skep(server, &["logs", "job"], "");
    assert!(logs.stdout.ends_with(b"begun\ndone \xff\n"), "{logs:?}");
    server.post("/api/swarm/cleanup", &json!({})).await.ok(200);
}
