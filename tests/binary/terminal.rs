//! Texts of other users in the command's output: unchanged for programs, and without control sequences on a terminal.

use std::process::{Command, Stdio};

use serde_json::json;

use crate::harness::{Skep, binary};

/// An escape sequence, a title, a C1 control and a change of the writing direction.
const HOSTILE: &str = "x\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}gpj.y";
/// The control characters in it. The terminal itself adds carriage returns.
const STEERING: [char; 4] = ['\u{1b}', '\u{7}', '\u{9b}', '\u{202e}'];
/// Runs a command on a terminal of its own, and passes on what arrives there.
const ON_A_TERMINAL: &str =
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/// What a command prints, to both of its outputs.
fn printed(skep: &Skep, mut command: Command) -> String {
    command.env("SKEP_URL", &skep.url).env("SKEP_API_KEY", &skep.key).env("TERM", "xterm");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    text(output.stdout) + &text(output.stderr)
}

fn by_pipe(skep: &Skep, arguments: &[&str]) -> String {
    let mut command = Command::new(binary());
    command.args(arguments);
    printed(skep, command)
}

fn on_a_terminal(skep: &Skep, arguments: &[&str]) -> String {
    let mut command = Command::new("python3");
    command.args(["-c", ON_A_TERMINAL]).arg(binary()).args(arguments);
    printed(skep, command)
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_of_others_do_not_steer_the_terminal_that_shows_them() {
    let skep = Skep::start().await;
    let root = skep.get("/api/whoami").await.ok(200)["roots"][0].as_str().unwrap().to_owned();
    let file = format!("{root}/folder/{HOSTILE}");
    let content = format!("line {HOSTILE}\n");
    skep.post("/api/files/write", &json!({"path": file, "content": content})).await.ok(201);
    let folder = format!("{root}/folder");
    let ticket = skep.post("/api/tickets", &json!({"title": HOSTILE})).await.ok(201);
    let ticket = ticket["id"].as_str().unwrap();
    let nowhere = format!("{root}/nowhere/{HOSTILE}");
    for (arguments, raw) in [
        (vec!["ls", &folder], true),
        (vec!["ls", "--json", &folder], true),
        (vec!["find", "*", &folder], true),
        (vec!["grep", "line", &folder], true),
        // Its message stands on standard error.
        (vec!["ls", &nowhere], true),
        // Titles go without controls to programs too, in all but JSON.
        (vec!["ticket", "list"], true),
        (vec!["ticket", "show", ticket], true),
        (vec!["ticket", "show", "--json", ticket], true),
        (vec!["account", "list"], false),
    ] {
        let piped = by_pipe(&skep, &arguments);
        // The control: a program gets the text as it is.
        assert_eq!(piped.contains('\u{202e}'), raw, "{arguments:?}: {piped:?}");
        let shown = on_a_terminal(&skep, &arguments);
        assert!(!shown.contains(STEERING), "{arguments:?}: {shown:?}");
        assert!(shown.contains("gpj.y") == raw && !shown.is_empty(), "{arguments:?}: {shown:?}");
    }
    // Raw output that the user requested is unchanged, on a terminal too.
    for shown in [by_pipe(&skep, &["cat", &file]), on_a_terminal(&skep, &["cat", &file])] {
        assert_eq!(shown.replace('\r', ""), content);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_key_is_in_its_file_and_not_in_the_log() {
    let skep = Skep::start().await;
    let log = skep.log();
    let file = skep.data_dir.path().join("admin.key");
    assert!(log.contains(&format!("The admin key is in {}", file.display())), "{log}");
    assert!(!log.contains(&skep.key), "the control is `skep serve` on a terminal: {log}");
}
