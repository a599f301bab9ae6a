//! The egress process: its start, its requests, and its replacement by another one.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::Path,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use skep_jail::{Confinement, Handles, Jailed, ProcessSpec, Seclusion, oom_score_adj, stage::SELF_EXE};
use skep_keeper_protocol::{EGRESS_PROTOCOL, EgressAnswer, EgressKeeperEnd, EgressRequest, NamesFile};
use skep_network::EgressListeners;
use tokio::time::sleep;

use super::{Shared, record::Record};
use crate::{Error, data_dir::remove_file, process_id::ProcessId};

/// A killed process usually exits within milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connections of a process that was replaced live on.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(600);
/// How long a replaced process may take until it writes no names any more.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts to lock the file of names.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

pub(super) struct Running {
    pub(super) process: Jailed,
    pub(super) control: EgressKeeperEnd,
}

impl Running {
    /// `None` if the process has ended. One that does not answer is killed.
    pub(super) async fn request(&self, request: EgressRequest) -> Option<EgressAnswer> {
        let answer = self.control.request(request).await;
        answer
            .inspect_err(|error| {
                tracing::warn!(%error, "the egress process does not answer and is started again: {error}");
                let _ = self.process.kill();
            })
            .ok()
    }

    pub(super) fn end(&self) {
        let _ = self.process.kill();
        let _ = self.process.wait(KILL_TIMEOUT);
        self.process.reap();
    }
}

impl Shared {
    pub(super) fn spawn(&self) -> Result<(Jailed, OwnedFd), Error> {
        let names = self.open_names()?;
        let path = self.data_dir.egress_socket();
        remove_file(&path)?;
        let failed = || Error::io(path.display().to_string());
        let control = skep_packet::listen(&path).map_err(failed())?;
        // Before the process exists, so that it learns of the keeper's end at any time.
        let ours = skep_packet::connect(&path).map_err(failed())?;
        let process = ProcessSpec {
            program: SELF_EXE.into(),
            arguments: self.config.arguments.clone(),
            environment: Vec::new(),
            uid: self.uid,
            gid: self.uid,
            groups: Vec::new(),
            oom_score_adj: oom_score_adj::SERVER,
            confinement: Confinement::Secluded(Seclusion { scratch: Vec::new(), executable: None }),
        };
        let EgressListeners { proxy, dns_udp, dns_tcp } = &self.listeners;
        let mut inherited = vec![control];
        for listener in [proxy, dns_udp, dns_tcp] {
            inherited.push(listener.try_clone().map_err(Error::io("listener of the egress process"))?);
        }
        inherited.push(names.into());
        let cgroup_procs_files = self.group.open_procs_files()?;
        let handles = Handles { cgroup_procs_files, inherited, ..Handles::default() };
        let spawned = skep_jail::spawn(&self.binary, &process, handles)?;
        let record = ProcessId::of(&spawned).and_then(|process| {
            let arguments = self.config.arguments.clone();
            let (boot_id, uid) = (self.boot_id.clone(), self.uid);
            let record = Record { boot_id, process, uid, protocol: EGRESS_PROTOCOL, arguments };
            record.write(&self.data_dir.egress_record())
        });
        match record {
            Ok(()) => Ok((spawned, ours)),
            Err(error) => {
                let _ = spawned.kill();
                let _ = spawned.wait(KILL_TIMEOUT);
                spawned.reap();
                Err(error)
            }
        }
    }

    /// Opens the file of names for one process.
    fn open_names(&self) -> Result<File, Error> {
        let path = self.data_dir.egress_names();
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).map_err(Error::io(path.display().to_string()))?;
        self.lock_names(&file, &path)?;
        let earlier_path = self.data_dir.earlier_egress_names();
        let failed = || Error::io(earlier_path.display().to_string());
        let earlier = match File::open(&earlier_path) {
            Ok(earlier) => earlier,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(file),
            Err(error) => return Err(failed()(error)),
        };
        self.lock_names(&earlier, &earlier_path)?;
        let names = file.try_clone().map_err(failed())?;
        NamesFile::new(names).import(&earlier).map_err(failed())?;
        // A power cut leaves one of the files, and never has the import made again over what was written since.
        let synced = || File::open(self.data_dir.keeper()).and_then(|folder| folder.sync_all());
        synced().map_err(failed())?;
        remove_file(&earlier_path)?;
        synced().map_err(failed())?;
        Ok(file)
    }

    /// Waits for the lock of a file of names: a replaced process writes to it until it has seen the signal. One that does not react is
    /// killed.
    fn lock_names(&self, file: &File, path: &Path) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if begun.elapsed() < RELEASE_TIMEOUT + KILL_TIMEOUT => {
                    if begun.elapsed() > RELEASE_TIMEOUT {
                        self.end_replaced();
                    }
                    std::thread::sleep(LOCK_INTERVAL);
                }
                Err(error) => return Err(Error::io(path.display().to_string())(io::Error::from(error))),
            }
        }
    }

    /// Has a process accept nothing more, and lets its connections live on for a while.
    pub(super) fn replace(self: &Arc<Self>, process: Jailed) -> Result<(), Error> {
        tracing::info!(pid = process.pid, "the egress process speaks another protocol and is replaced");
        process.signal(Signal::TERM)?;
        *self.replaced.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            sleep(DRAIN_TIMEOUT).await;
            if let Some(this) = this.upgrade() {
                this.end_replaced();
            }
        });
        Ok(())
    }

    pub(super) fn end_replaced(&self) {
        if let Some(process) = self.replaced.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // The kill fails only if the process has ended.
            let _ = process.kill();
        }
    }
}
