//! The agent inside a VM: its init process, and the peer of the server.
//!
//! It boots the guest from an initramfs that contains only the agent and a few kernel modules, waits for the host at
//! the virtio port, sets the VM's identity after each restore, and runs commands with the same code as the server.

mod clock;
mod console;
mod entropy;
mod error;
mod files;
mod freeze;
mod groups;
mod handler;
mod hooks;
mod identity;
mod init;
mod modules;
mod mounts;
mod network;
mod port;
mod power;
mod settle;
mod sockets;
mod usage;

use std::{process::ExitCode, time::Duration};

use error::{Error, StepContext};
use handler::Agent;
use port::PortFile;

/// Twice this is shorter than [`settle::QUIET_PERIOD`], so that no orphan is left to reap when a VM is saved.
const ORPHAN_DELAY: Duration = Duration::from_millis(50);

fn main() -> ExitCode {
    if let Some(status) = skep_workspace::git::serve_git_callback() {
        return ExitCode::from(status);
    }
    if power::is_requested() {
        return power::reset();
    }
    if std::process::id() != 1 {
        console::log("this is the first process of a skep VM and does nothing elsewhere");
        return ExitCode::FAILURE;
    }
    // When init exits, the kernel panics and the VM ends, so no half-booted VM remains.
    let Err(error) = run();
    console::log(&error.to_string());
    ExitCode::FAILURE
}

fn run() -> Result<std::convert::Infallible, Error> {
    init::boot()?;
    let agent = Agent::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|source| Error::step("start the runtime", source))?;
    runtime.block_on(async {
        skep_host::reap_orphans(agent.commands(), ORPHAN_DELAY).context("listen for ended children")?;
        let port = PortFile::open()?;
        console::log("ready");
        loop {
            port.wait_for_host().await?;
            let stream = port.stream()?;
            // An error or the end of the stream means that the host hung up; the agent waits for the next one.
            let _ = skep_channel::guest::serve(stream, agent.clone()).await;
        }
    })
}
