//! Preparation for the snapshot: loads what every VM will need into the memory that all VMs share.

use std::{collections::BTreeMap, fs, io, time::Duration};

use rustix::fs::sync;
use skep_api::exec::{RunCommand, Stdin};
use skep_workspace::{Place, Run};

use crate::{console, error::Error, groups};

/// Commands that are run once, so that the pages of their programs and libraries are in memory.
const PROGRAMS: &[&str] = &[
    "git --version; git -c init.defaultBranch=main init -q /tmp/warm && git -C /tmp/warm status; rm -rf /tmp/warm",
    "python3 -c 'import json, os, re, subprocess, urllib.request'",
    "curl --version",
    "bash -c true",
    "ls -la /; cat /etc/hosts; uname -n; hostname; id; env; ps; ip address; mkdir -p /tmp/a; rm -rf /tmp/a",
];
/// Files of the most used programs, which are read completely.
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
/// Longer than any deferred work of a command takes, such as reaping and removing its control group. Work that is
/// still pending when a VM is saved or paused would delay its next command after it is resumed.
pub(crate) const QUIET_PERIOD: Duration = Duration::from_millis(200);
/// How often a command is run: the first runs are slower.
const WARM_UP_ROUNDS: usize = 5;

/// Warms up the guest, limits its commands, and syncs its disks.
pub(crate) async fn settle(place: &Place) -> Result<(), Error> {
    for file in FILES {
        // An image may lack some of the files.
        let _ = fs::File::open(file).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    }
    for program in PROGRAMS {
        if let Err(reason) = run(place, program).await {
            console::log(&format!("a warm-up command failed: {reason}"));
        }
    }
    for _ in 0..WARM_UP_ROUNDS {
        run(place, "true").await.map_err(Error::NoShell)?;
    }
    let commands = place.commands();
    commands.wait_until_idle().await;
    commands.forget_ended();
    sync();
    // The memory of ended commands is free only then, and their limit is measured by what is free.
    tokio::time::sleep(QUIET_PERIOD).await;
    groups::limit()?;
    console::log("at rest");
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
