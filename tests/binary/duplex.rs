//! Commands in a VM with input and output as bytes, by the command and by a WebSocket.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use data_encoding::BASE64;
use eventsource_stream::Eventsource;
use futures_util::{SinkExt, StreamExt};
use rand::{RngCore, SeedableRng, rngs::StdRng};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio_tungstenite::{
    connect_async,
    tungstenite::{Message, client::IntoClientRequest},
};

use crate::{
    command::terminal,
    harness::{Skep, binary, command, eventually, printed, step},
    takeover::Streamed,
};

fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    StdRng::seed_from_u64(16).fill_bytes(&mut bytes);
    bytes
}

fn exec(server: &Skep, arguments: &[&str]) -> Command {
    let mut command = command(server, &[&["exec"], arguments].concat());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The output of `tar c` for a folder, sorted and without times of its own.
fn tar(folder: &Path) -> Vec<u8> {
    let tar = Command::new("tar").args(["--sort=name", "-c", "."]).current_dir(folder).output().unwrap();
    assert!(tar.status.success(), "{tar:?}");
    tar.stdout
}

fn feed(child: &mut Child, bytes: Vec<u8>) -> thread::JoinHandle<()> {
    let mut stdin = child.stdin.take().unwrap();
    thread::spawn(move || drop(stdin.write_all(&bytes)))
}

#[tokio::test(flavor = "multi_thread")]
async fn input_and_output_are_bytes_of_a_command_that_runs_and_an_interrupt_is_its_own() {
    let server = Skep::start().await;
    let vm = server.boot_one().await;
    let pid = vm.to_string();
    step("a tree goes into a VM and comes back the same", async { a_tree(&server, &pid) }).await;
    step("a command starts before its input ends", async { input_that_goes_on(&server, &pid) }).await;
    step("a terminal is passed on line by line", async { a_terminal(&server, &pid) }).await;
    step("-n leaves the input to a loop", async { a_loop(&server, &pid) }).await;
    step("a signal is the command's own", signals(&server, vm)).await;
}

fn a_tree(server: &Skep, pid: &str) {
    let (out, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(out.path().join("deep")).unwrap();
    fs::write(out.path().join("deep/noise"), noise(3 << 20)).unwrap();
    fs::write(out.path().join("text"), "é\n").unwrap();
    std::os::unix::fs::symlink("text", out.path().join("link")).unwrap();
    let sent = tar(out.path());
    let mut into = exec(server, &[pid, "mkdir tree && tar x -C tree"]).stdin(Stdio::piped()).spawn().unwrap();
    let feeding = feed(&mut into, sent.clone());
    let done = into.wait_with_output().unwrap();
    feeding.join().unwrap();
    assert!(done.status.success(), "{done:?}");
    let from = exec(server, &["-n", pid, "tar c -C tree ."]).output().unwrap();
    assert!(from.status.success(), "{:?}", from.stderr);
    let mut unpack =
        Command::new("tar").arg("x").current_dir(back.path()).stdin(Stdio::piped()).spawn().unwrap();
    unpack.stdin.take().unwrap().write_all(&from.stdout).unwrap();
    assert!(unpack.wait().unwrap().success());
    let same = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .args([out.path(), back.path()])
        .output()
        .unwrap();
    assert!(same.status.success(), "{same:?}");
    // Output that is not text is unchanged as well.
    let file = exec(server, &["-n", pid, "cat tree/deep/noise"]).output().unwrap();
    assert!(file.stdout == noise(3 << 20), "{} bytes", file.stdout.len());
}

fn input_that_goes_on(server: &Skep, pid: &str) {
    let mut child = exec(server, &[pid, "cat; exit 4"]).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    for line in [&b"one\n"[..], b"\xE2\x82"] {
        stdin.write_all(line).unwrap();
        let mut came = vec![0; line.len()];
        stdout.read_exact(&mut came).unwrap();
        assert_eq!(came, line);
    }
    drop(stdin);
    assert_eq!(child.wait().unwrap().code(), Some(4));
    // Its input never ends and is larger than all buffers, and the timeout still applies.
    let zero = File::open("/dev/zero").unwrap();
    let output = exec(server, &["--timeout", "2s", pid, "sleep 600"]).stdin(zero).output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{output:?}");
    // One that takes a part ends as it does.
    let zero = File::open("/dev/zero").unwrap();
    let output = exec(server, &[pid, "head -c 3 | od -An -tx1"]).stdin(zero).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b" 00 00 00\n"[..]));
}

fn a_terminal(server: &Skep, pid: &str) {
    let (mut terminal, end) = terminal();
    let mut child = exec(server, &[pid, "read line; echo got $line; cat"]).stdin(end).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    for (typed, expected) in [("one\n", "got one\n"), ("two\n", "two\n")] {
        terminal.write_all(typed.as_bytes()).unwrap();
        let mut came = vec![0; expected.len()];
        stdout.read_exact(&mut came).unwrap();
        assert_eq!(String::from_utf8_lossy(&came), expected);
    }
    // Ctrl-D: the terminal ends the input.
    terminal.write_all(b"\x04").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// The command in the VM reads its input to the end, so without `-n` it consumes the lines of the loop.
fn a_loop(server: &Skep, pid: &str) {
    let script =
        "printf '1\\n2\\n' | while read line; do \"$0\" exec $1 \"$2\" 'cat > /dev/null'; echo $line; done";
    // The control: without the option, the first command reads the second line.
    for (option, lines) in [("-n", "1\n2"), ("", "1")] {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).arg(binary()).args([option, pid]);
        shell.env("SKEP_URL", &server.url).env("SKEP_API_KEY", &server.key);
        assert_eq!(printed(&shell.output().unwrap()), lines, "{option}");
    }
}

async fn signals(server: &Skep, vm: u64) {
    let pid = vm.to_string();
    let succeeds = async |command: &str| server.exec(vm, command).await["exit_code"] == 0;
    for (signal, command, goes_on, code) in [
        (Signal::INT, "trap 'echo caught; exit 7' INT; touch ready; while sleep 0.2; do :; done", false, 7),
        (Signal::TERM, "trap 'echo caught; exit 7' TERM; touch ready; while sleep 0.2; do :; done", false, 7),
        (Signal::INT, "touch ready; sleep 600", false, 130),
        (Signal::INT, "trap 'touch caught' INT; touch ready; while :; do sleep 600 & wait; done", true, 130),
    ] {
        server.exec(vm, "rm -f ready").await;
        let mut child = exec(server, &[&pid, command]).spawn().unwrap();
        // The file alone is not enough: dash loses a SIGINT that arrives between its fork and the `exec` of a program.
        eventually("the command", async || succeeds("test -e ready && pgrep -x sleep").await).await;
        kill_process(Pid::from_child(&child), signal).unwrap();
        if goes_on {
            // Two signals of one number that come at once are one.
            eventually("the first signal", async || succeeds("test -e caught").await).await;
            kill_process(Pid::from_child(&child), signal).unwrap();
        }
        assert_eq!(child.wait().unwrap().code(), Some(code), "{command}");
        eventually("its end", async || !succeeds("pgrep -x sleep").await).await;
    }
}

/// Prints a line once there is a file `go`, unless the input of the command has ended by then. A shell gives commands in the
/// background an empty input, unless it is redirected.
const UNTIL_GO: &str = r"printf '\377one'; exec 3<&0; (cat; touch ended) <&3 >/dev/null 2>&1 &
    while ! test -e go; do sleep 1; done; test -e ended || echo two";

/// A restart closes the connections. The output of the commands is not lost, and no input ends.
#[tokio::test(flavor = "multi_thread")]
async fn commands_outlive_a_restart_and_their_output_is_come_back_to() {
    let server = Skep::start().await;
    let pid = server.boot_one().await;
    let waiting = "echo one; while ! test -e go; do sleep 1; done; echo two; exit 3";
    let mut streamed = Streamed::begin(&server, pid, waiting).await;
    streamed.wait_for_output(4).await;
    let path = format!("/api/swarm/vm/{pid}/exec");
    let mut request =
        format!("ws{}{path}", server.url.trim_start_matches("http")).into_client_request().unwrap();
    let bearer = format!("Bearer {}", server.key);
    request.headers_mut().insert("authorization", bearer.parse().unwrap());
    let (mut socket, _) = connect_async(request).await.unwrap();
    let command = json!({"command": UNTIL_GO, "timeout": 600_000});
    socket.send(Message::text(command.to_string())).await.unwrap();
    let (mut id, mut seen) = (String::new(), Vec::new());
    let mut restarted = false;
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Text(text) => {
                let notice: Value = serde_json::from_str(&text).unwrap();
                match notice["type"].as_str().unwrap() {
                    "started" => notice["id"].as_str().unwrap().clone_into(&mut id),
                    "error" => {
                        assert_eq!(notice["code"], "shutting_down", "{notice}");
                        break;
                    }
                    _ => panic!("{notice}"),
                }
            }
            Message::Binary(bytes) => {
                assert_eq!(bytes[0], 1);
                seen.extend_from_slice(&bytes[1..]);
            }
            _ => {}
        }
        if seen == b"\xFFone" && !restarted {
            restarted = true;
            server.post("/api/admin/restart", &json!({})).await.ok(202);
        }
    }
    // The stream of events describes how to resume.
    let (kind, data) = streamed.rest().await.unwrap();
    assert_eq!((kind.as_str(), &data["code"]), ("error", &json!("shutting_down")), "{data}");
    let mut streamed = streamed.again(&server, pid).await;
    server.exec(pid, "touch go").await;
    let (_, exit) = streamed.rest().await.unwrap();
    assert_eq!((streamed.stdout.as_str(), &exit["exit_code"]), ("one\ntwo\n", &json!(3)));
    assert_rest(&server, &format!("{path}/{id}?stdout={}&encoding=base64", seen.len())).await;
}

/// Asserts what the command of the WebSocket printed after the restart.
async fn assert_rest(server: &Skep, again: &str) {
    let response = server.request(Method::GET, again).send().await.unwrap();
    let events: Vec<_> = response.bytes_stream().eventsource().map(Result::unwrap).collect().await;
    let mut rest = Vec::new();
    for event in events.iter().filter(|event| event.event == "stdout") {
        let data: Value = serde_json::from_str(&event.data).unwrap();
        rest.extend(BASE64.decode(data["data"].as_str().unwrap().as_bytes()).unwrap());
    }
    assert_eq!(String::from_utf8_lossy(&rest), "two\n", "without it, the input has ended");
    assert_eq!(events.last().unwrap().event, "exit");
}
