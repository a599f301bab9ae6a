//! Kills of server or keeper at a step that the log names.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
    time::{Duration, Instant},
};

use crate::harness::{Skep, kill};

/// The log has the steps of copies then.
pub(crate) const OPTIONS: [&str; 2] = ["--log-level", "info,skep_swarm=debug,skep::templates=debug"];
/// Some steps include the boot of a guest, which takes long on a machine under load.
const LIMIT: Duration = Duration::from_secs(180);

/// Parts of the line that is logged after a step.
pub(crate) type Step = &'static [&'static str];

/// What the log will say from now on.
pub(crate) struct Log {
    path: PathBuf,
    from: u64,
}

impl Log {
    pub(crate) fn from_now(skep: &Skep) -> Self {
        let path = skep.data_dir.path().join("test.log");
        let from = fs::metadata(&path).unwrap().len();
        Self { path, from }
    }

    /// Blocks until a step is logged.
    pub(crate) fn wait_for(&self, step: Step) {
        let begun = Instant::now();
        loop {
            let mut file = fs::File::open(&self.path).unwrap();
            file.seek(SeekFrom::Start(self.from)).unwrap();
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            if text.lines().any(|line| step.iter().all(|part| line.contains(part))) {
                return;
            }
            assert!(begun.elapsed() < LIMIT, "no `{step:?}`: {text}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// The process that is killed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Victim {
    Server,
    Keeper,
    /// The server, and the keeper right after it.
    Both,
}

impl Victim {
    /// Kills it as soon as a step is logged.
    pub(crate) async fn kill_at(self, step: Step, log: Log, skep: Skep) -> Skep {
        let server = skep.server_pid().unwrap();
        let pid = match self {
            Self::Server | Self::Both => server,
            Self::Keeper => skep.pid(),
        };
        let kill = move || {
            log.wait_for(step);
            kill(pid);
        };
        tokio::task::spawn_blocking(kill).await.unwrap();
        match self {
            Self::Server => {
                skep.wait_for_server_after(server).await;
                skep
            }
            Self::Keeper | Self::Both => skep.crash().start_with(&OPTIONS).await,
        }
    }
}
