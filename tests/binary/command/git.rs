//! Git by command, on the server and in a VM.

use std::process::Output;

use serde_json::Value;

use super::{answer, skep, stdout};
use crate::harness::{Skep, step};

#[track_caller]
fn done(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    stdout(&output)
}

#[tokio::test(flavor = "multi_thread")]
async fn repositories_are_used_by_the_same_verbs_on_the_server_and_in_a_vm() {
    let server = Skep::start().await;
    done(skep(&server, &["boot", "--name", "web"], ""));
    // The first one counts the repositories that there are.
    step("a VM works on a clone without a network", async { a_clone_in_a_vm(&server) }).await;
    step("both places have repositories with the same verbs", async { both_places(&server) }).await;
    step("a clone is pushed from and pulled into", async { pushes_and_pulls(&server) }).await;
    step("a credential is read from standard input and never shown", async { credentials(&server) }).await;
}

fn both_places(server: &Skep) {
    for place in [&[][..], &["--vm", "web"]] {
        let run = |arguments: &[&str], input: &str| skep(server, &[arguments, place].concat(), input);
        let git =
            |arguments: &[&str]| run(&[&["git", arguments[0], "-C", "work"], &arguments[1..]].concat(), "");
        done(run(&["git", "init", "work"], ""));
        done(run(&["write", "work/notes.md"], "first\n"));
        let status = done(git(&["status"]));
        assert!(status.contains("untracked  notes.md"), "{status}");
        assert!(done(git(&["add"])).contains("notes.md"));
        let made = done(git(&["commit", "-m", "Begin", "--author", "A Person <person@example.org>"]));
        assert!(made.contains("Begin") && made.contains("1 file changed"), "{made}");
        done(run(&["write", "work/notes.md"], "second\n"));
        let diff = done(git(&["diff"]));
        assert!(diff.contains("-first\n+second\n"), "{diff}");
        done(git(&["checkout", "-b", "topic"]));
        done(git(&["commit", "-a", "-m", "Go on"]));
        let log: Value = answer(&git(&["log", "--json"]));
        let subjects: Vec<&str> =
            log["commits"].as_array().unwrap().iter().map(|c| c["subject"].as_str().unwrap()).collect();
        assert_eq!(subjects, ["Go on", "Begin"]);
        assert!(done(git(&["log"])).contains("Author: A Person <person@example.org>"));
        let branches = done(git(&["branch"]));
        assert!(branches.contains("* topic ") && branches.lines().count() == 2, "{branches}");
        assert!(done(git(&["status"])).contains("nothing is changed"));
        let refused = git(&["checkout", "missing"]);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("missing"), "{refused:?}");
    }
}

fn pushes_and_pulls(server: &Skep) {
    let run = |arguments: &[&str], input: &str| skep(server, arguments, input);
    done(run(&["git", "init", "origin"], ""));
    done(run(&["write", "origin/a"], "a\n"));
    done(run(&["git", "add", "-C", "origin"], ""));
    done(run(&["git", "commit", "-C", "origin", "-m", "Begin"], ""));
    let root = server.data_dir.path().join("workspaces/default");
    let origin = root.join("origin").display().to_string();
    done(run(&["git", "clone", &origin, "copy"], ""));
    assert_eq!(done(run(&["cat", "copy/a"], "")), "a\n");
    done(run(&["git", "checkout", "-C", "copy", "-b", "topic"], ""));
    done(run(&["write", "copy/b"], "b\n"));
    done(run(&["git", "add", "-C", "copy", "b"], ""));
    done(run(&["git", "commit", "-C", "copy", "-m", "Add b"], ""));
    let pushed = done(run(&["git", "push", "-C", "copy", "-u", "origin", "topic"], ""));
    assert!(pushed.contains("topic to origin: new ->"), "{pushed}");
    done(run(&["git", "checkout", "-C", "origin", "topic"], ""));
    assert_eq!(done(run(&["cat", "origin/b"], "")), "b\n");
    done(run(&["write", "origin/c"], "c\n"));
    done(run(&["git", "add", "-C", "origin"], ""));
    done(run(&["git", "commit", "-C", "origin", "-m", "Add c"], ""));
    let pulled = done(run(&["git", "pull", "-C", "copy"], ""));
    assert!(pulled.contains("1 commit, 1 file changed"), "{pulled}");
    assert_eq!(done(run(&["cat", "copy/c"], "")), "c\n");
}

/// Without -C, between places, and by the verbs that people know.
fn a_clone_in_a_vm(server: &Skep) {
    let run = |arguments: &[&str], input: &str| skep(server, arguments, input);
    let wrong = |arguments: &[&str]| {
        let output = run(arguments, "");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(wrong(&["git", "status", "--vm", "web"]).contains("skep git init PATH --vm web"));
    done(run(&["git", "init", "--bare", "hub.git"], ""));
    assert_eq!(done(run(&["git", "clone", "server:hub.git", "web:"], "")), "/root/hub\n");
    done(run(&["write", "hub/a", "--vm", "web"], "a\n"));
    done(run(&["git", "add", "--vm", "web"], ""));
    done(run(&["git", "commit", "-m", "Begin", "--vm", "web"], ""));
    done(run(&["git", "tag", "v1", "-m", "One", "--vm", "web"], ""));
    assert!(done(run(&["git", "tag", "--vm", "web"], "")).contains("One"));
    assert_eq!(done(run(&["git", "show", "v1:a", "--vm", "web"], "")), "a\n");
    assert!(done(run(&["git", "show", "--vm", "web"], "")).contains("+a"));
    assert!(done(run(&["git", "push", "--vm", "web"], "")).contains("main to origin: new ->"));
    assert!(done(run(&["git", "remote", "--vm", "web"], "")).contains("origin skep://server/"));
    assert!(done(run(&["git", "log", "-C", "hub.git"], "")).contains("Begin"));
    assert!(done(run(&["git", "fetch", "--vm", "web"], "")).contains("nothing new"));
    done(run(&["git", "checkout", "-b", "topic", "--vm", "web"], ""));
    done(run(&["write", "hub/b", "--vm", "web"], "b\n"));
    done(run(&["git", "add", "--vm", "web"], ""));
    done(run(&["git", "commit", "-m", "Go on", "--vm", "web"], ""));
    done(run(&["git", "checkout", "main", "--vm", "web"], ""));
    assert!(done(run(&["git", "merge", "topic", "--vm", "web"], "")).contains("1 commit"));
    assert!(done(run(&["git", "clone", "web:hub", "server:"], "")).ends_with("/hub\n"));
    assert_eq!(done(run(&["cat", "hub/b"], "")), "b\n");
    assert!(wrong(&["git", "status"]).contains("hub.git"), "several are listed");
    done(run(&["git", "clone", "/root/hub", "second", "--vm", "web"], ""));
    assert!(wrong(&["git", "status", "--vm", "web"]).contains("/root/hub, /root/second"));
    done(run(&["git", "remote", "add", "other", "https://git.example.com/x", "-C", "hub"], ""));
    done(run(&["git", "remote", "set-url", "other", "https://git.example.com/y", "-C", "hub"], ""));
    assert!(
        done(run(&["git", "remote", "list", "-C", "hub"], "")).contains("other https://git.example.com/y")
    );
    done(run(&["git", "remote", "remove", "other", "-C", "hub"], ""));
    clones_that_cannot_work(server);
}

/// Each ends at once, and leaves nothing.
fn clones_that_cannot_work(server: &Skep) {
    let run = |arguments: &[&str], input: &str| skep(server, arguments, input);
    for (source, target, why) in [
        ("server:missing", "web:x", "missing"),
        ("git://git.example.com/x", "web:x", "https://"),
        ("https://127.0.0.1/x", "web:x", "`git_relay: \"any\"` of the account"),
        ("nobody:x", "web:x", "nobody"),
        ("web:hub", "server:hub", "hub"),
    ] {
        let output = run(&["git", "clone", source, target], "");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && message.contains(why), "{source}: {output:?}");
    }
    assert!(!run(&["ls", "x", "--vm", "web"], "").status.success());
}

fn credentials(server: &Skep) {
    let run = |arguments: &[&str], input: &str| skep(server, arguments, input);
    done(run(&["git", "credentials", "set", "git.example.com", "--username", "ada"], "hunter2\n"));
    let listed = done(run(&["git", "credentials", "list"], ""));
    assert!(
        listed.contains("git.example.com") && listed.contains("ada") && !listed.contains("hunter2"),
        "{listed}"
    );
    let empty = run(&["git", "credentials", "set", "git.example.com"], "\n");
    assert!(String::from_utf8_lossy(&empty.stderr).contains("token is empty"), "{empty:?}");
    done(run(&["git", "credentials", "remove", "git.example.com"], ""));
    let gone = run(&["git", "credentials", "remove", "git.example.com"], "");
    assert!(String::from_utf8_lossy(&gone.stderr).contains("list the account's credentials"), "{gone:?}");
}
