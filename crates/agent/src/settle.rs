//! The last minutes before the snapshot: what every VM will need is brought into the memory that all of them share.

use std::{collections::BTreeMap, fs, io, time::Duration};

use rustix::fs::sync;
use skep_api::exec::{RunCommand, Stdin};
use skep_workspace::{Place, Run};

use crate::{console, error::Error, groups};

/// Programs that agents start, each once, so that their pages and those of their libraries are in memory.
const PROGRAMS: &[&str] = &[
    "git --version; git -c init.defaultBranch=main init -q /tmp/warm && git -C /tmp/warm status; rm -rf /tmp/warm",
    "python3 -c 'import json, os, re, subprocess, urllib.request'",
    "curl --version",
    "bash -c true",
    "ls -la /; cat /etc/hosts; uname -n; hostname; id; env; ps; ip address; mkdir -p /tmp/a; rm -rf /tmp/a",
];
/// Files that are read whole: those of the most used programs.
const FILES: &[&str] = &[
    "/usr/bin/dash",
    "/usr/bin/bash",
    "/usr/bin/git",
    "/usr/bin/python3",
    "/usr/bin/curl",
    "/usr/bin/cat",
    "/usr/bin/ls",
    "/usr/bin/uname",
    "/usr/bin/sleep",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
];
/// Longer than anything that commands leave to be done later: reaping, and removing what is empty. Whatever is still to
/// be done when a VM is saved or stopped it does when it goes on, and somebody waits for it then.
pub(crate) const SILENCE: Duration = Duration::from_millis(200);
/// How often the way of a command is walked: the first times are the slow ones.
const ROUNDS: usize = 5;

/// Warms what will be needed and writes down what is in flight.
pub(crate) async fn settle(place: &Place) -> Result<(), Error> {
    for file in FILES {
        // An image may lack any of them.
        let _ = fs::File::open(file).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    }
    for program in PROGRAMS {
        if let Err(reason) = run(place, program).await {
            console::say(&format!("not warm: {reason}"));
        }
    }
    let commands = place.commands();
    for _ in 0..ROUNDS {
        run(place, "true").await.map_err(Error::NoShell)?;
        commands.rest().await;
    }
    // Whoever is restored starts its own, with randomness of its own.
    commands.discard_ahead();
    commands.idle().await;
    commands.forget_ended();
    groups::limit()?;
    sync();
    tokio::time::sleep(SILENCE).await;
    console::say("at rest");
    Ok(())
}

async fn run(place: &Place, command: &str) -> Result<(), String> {
    let command = RunCommand {
        command: command.to_owned(),
        cwd: Some("/".to_owned()),
        env: BTreeMap::new(),
        stdin: Stdin::Empty,
        timeout_ms: 60_000,
    };
    let outcome = command.run(place).await.map_err(|error| error.to_string())?;
    if outcome.exit_code == Some(0) { Ok(()) } else { Err(outcome.stderr.trim_end().to_owned()) }
}
