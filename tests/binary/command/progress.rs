//! What the command shows on a terminal while a request takes long.

use std::{
    io::Read,
    net::TcpListener,
    process::{Command, Stdio},
};

use super::terminal;
use crate::harness::binary;

#[test]
fn what_takes_long_shows_on_a_terminal_that_it_goes_on() {
    // A server that takes the requests and answers none.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    for (arguments, shown) in [
        (["boot", "-n", "3"].as_slice(), "booting 3 VMs"),
        (&["fork", "web"], "forking 1 VM"),
        (&["fork", "-n", "3", "web"], "forking 3 VMs"),
        (&["snapshot", "web", "installed"], "storing `installed`"),
        (&["pause", "--to", "disk", "web"], "pausing web"),
        (&["resume", "web"], "resuming web"),
        (&["resume", "--without-memory", "web"], "resuming web"),
        (&["template", "rm", "installed"], "deleting installed"),
    ] {
        shows_its_progress(&url, arguments, shown);
    }
}

/// Waits until a command, whose request is not answered, shows this text on its terminal.
fn shows_its_progress(url: &str, arguments: &[&str], shown: &str) {
    let (mut terminal, end) = terminal();
    let mut child = Command::new(binary())
        .args(arguments)
        .args(["--url", url, "--api-key", "x"])
        .env("TERM", "xterm")
        .stdout(Stdio::null())
        .stderr(end)
        .spawn()
        .unwrap();
    let mut progress = String::new();
    while !progress.contains(shown) {
        let mut block = [0; 256];
        // Nothing but an end of the process makes this fail.
        let read =
            terminal.read(&mut block).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {progress}"));
        progress.push_str(&String::from_utf8_lossy(&block[..read]));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
