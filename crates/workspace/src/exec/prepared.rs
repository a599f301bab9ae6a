//! Commands in shells that were started ahead. See `skep_prepared_shell`.

use std::{collections::BTreeMap, io, path::Path, sync::Arc};

use rustix::process::Pid;
use skep_api::exec::RunCommand;
use skep_prepared_shell::{PreparedShell, Processes, ShellCommand, StartedShell};

use super::{Commands, cgroup::ControlGroup, shell::Shell, spawn::Spawned};
use crate::Place;

/// A prepared shell and its control group. The zygote, from which the others are copied, has none of its own.
#[derive(Debug)]
pub(super) struct PreparedProcess {
    shell: Shell,
    group: Option<ControlGroup>,
}

/// The children of a workspace's commands.
#[derive(Debug)]
pub(super) struct Children<'a>(pub(super) &'a Commands);

impl Processes for Children<'_> {
    type Process = PreparedProcess;

    fn add<T>(&self, start: impl FnOnce() -> io::Result<(Pid, T)>) -> io::Result<(PreparedProcess, T)> {
        let (pid, rest) = self.0.spawn_owned(start)?;
        Ok((PreparedProcess { shell: self.0.adopt(pid)?, group: None }, rest))
    }

    fn isolate(&self, process: &mut PreparedProcess) -> io::Result<()> {
        process.group.insert(self.0.unnamed_group()?).add_process(process.shell.pid())
    }

    fn discard(&self, process: Arc<PreparedProcess>) {
        process.shell.kill();
        let commands = self.0.clone();
        tokio::spawn(async move {
            process.shell.wait_until_ended().await;
            let _ = process.shell.reap();
            commands.disown(&process.shell);
            // The shell had no children, so the group is empty.
            process.group.as_ref().map(ControlGroup::remove);
        });
    }
}

/// Starts a command in a prepared shell. `None` if no shell is ready, or the command needs a new one.
pub(super) fn start(
    prepared: &PreparedShell<PreparedProcess>,
    commands: &Commands,
    command: &RunCommand,
    cwd: &Path,
    place: &Place,
) -> Option<(ControlGroup, Spawned)> {
    let environment: BTreeMap<&str, &str> =
        place.env().iter().chain(&command.env).map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let started = prepared.start(
        &Children(commands),
        &ShellCommand {
            text: &command.command,
            environment: &environment,
            directory: cwd,
            with_stdin: command.stdin.is_piped(),
        },
    )?;
    let StartedShell { process: PreparedProcess { shell, group }, stdin, stdout, stderr } = started;
    Some((group?, Spawned { shell, stdin, stdout, stderr }))
}
