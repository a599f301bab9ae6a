//! A workspace whose commands have a control group.

use std::collections::BTreeMap;

use skep_api::exec::{ExecOutcome, RunCommand, Stdin};
use skep_harness::ControlGroup;
use skep_workspace::{Error, Output, Place, Run};
use tempfile::TempDir;

/// A temporary workspace whose control group is removed on drop.
pub(crate) struct Fixture {
    pub(crate) place: Place,
    pub(crate) group: ControlGroup,
    pub(crate) dir: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let group = ControlGroup::of_test("workspace");
        Self { place: Place::new("/", dir.path(), environment(), &group), group, dir }
    }

    pub(crate) async fn run_command(&self, command: RunCommand) -> Result<ExecOutcome, Error> {
        command.run(&self.place).await
    }

    pub(crate) async fn run(&self, command: &str) -> ExecOutcome {
        self.run_command(request(command)).await.expect("it runs")
    }

    pub(crate) fn start(&self, id: &str, command: &str) -> Output {
        let running = self.place.commands().start(id, &request(command), &self.place).expect("it starts");
        running.attach(0, 0)
    }
}

pub(crate) fn request(command: &str) -> RunCommand {
    RunCommand {
        command: command.to_owned(),
        cwd: None,
        env: BTreeMap::new(),
        stdin: Stdin::Empty,
        timeout_ms: 20_000,
    }
}

fn environment() -> BTreeMap<String, String> {
    let path = "/usr/local/bin:/usr/bin:/bin".to_owned();
    BTreeMap::from([("PATH".to_owned(), path), ("LANG".to_owned(), "C.UTF-8".to_owned())])
}
