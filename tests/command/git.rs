//! Git by command, on the server and in a VM.

use std::process::Output;

use serde_json::Value;

use super::{answer, skep, stdout};
use crate::harness::Skep;

#[track_caller]
fn done(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    stdout(&output)
}

#[tokio::test(flavor = "multi_thread")]
async fn both_places_have_repositories_with_the_same_verbs() {
    let server = Skep::start().await;
    let vm = answer(&skep(&server, &["boot", "--json"], ""))["vms"][0]["id"].as_str().unwrap().to_owned();
    for place in [&[][..], &["--vm", &vm]] {
        let run = |words: &[&str], input: &str| skep(&server, &[words, place].concat(), input);
        let git = |words: &[&str]| run(&[&["git", words[0], "-C", "work"], &words[1..]].concat(), "");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_is_pushed_from_and_pulled_into() {
    let server = Skep::start().await;
    let run = |words: &[&str], input: &str| skep(&server, words, input);
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
