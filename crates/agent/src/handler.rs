//! What the agent does about each request.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, PoisonError, RwLock},
};

use skep_api::{Failure, exec::RunCommand};
use skep_channel::{
    Identity, IdentityReport,
    guest::{Events, Handler},
};
use skep_workspace::{Commands, Output, Place, run_by_name};

use crate::{error::Error, identity, settle};

/// Where the control groups of commands lie.
const CGROUP_PARENT: &str = "/sys/fs/cgroup/skep";
const HOME: &str = "/root";
/// The largest request in a guest with much memory, in bytes.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// The agent's state. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    /// The guest without an identity.
    bare: Place,
    /// The VM that it is, once it is one.
    vm: Arc<RwLock<Option<Place>>>,
    request_limit: usize,
}

impl Agent {
    pub(crate) fn new() -> Self {
        let env = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            ("HOME", HOME),
            ("USER", "root"),
            ("LOGNAME", "root"),
            ("SHELL", "/bin/bash"),
            ("LANG", "C.UTF-8"),
        ];
        let env: BTreeMap<_, _> = env.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let bare = Place::new("/", HOME, env, CGROUP_PARENT);
        Self { bare, vm: Arc::default(), request_limit: request_limit() }
    }

    pub(crate) fn commands(&self) -> Commands {
        self.bare.commands().clone()
    }

    /// Where commands run. Nothing of a user runs in a VM that is nobody yet.
    fn place(&self) -> Result<Place, Error> {
        self.vm.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Error::Nobody)
    }
}

impl Handler for Agent {
    fn request_limit(&self) -> usize {
        self.request_limit
    }

    async fn take_identity(&self, identity: Identity) -> Result<IdentityReport, Failure> {
        let report = identity::take(&identity)?;
        let place = self.bare.with_env(&identity.env);
        *self.vm.write().unwrap_or_else(PoisonError::into_inner) = Some(place);
        Ok(report)
    }

    async fn settle(&self) -> Result<(), Failure> {
        Ok(settle::settle(&self.bare).await?)
    }

    async fn run(&self, call: &str, name: &str, request: Vec<u8>) -> Result<Vec<u8>, Failure> {
        Ok(run_by_name(name, &request, &self.place()?.for_call(call)).await?)
    }

    fn start(&self, id: &str, command: RunCommand) -> Result<Events, Failure> {
        let place = self.place()?;
        Ok(events(place.commands().start(id, &command, &place)?.attach(0, 0)))
    }

    fn attach(&self, id: &str, stdout_offset: u64, stderr_offset: u64) -> Result<Events, Failure> {
        Ok(events(self.bare.commands().find(id)?.attach(stdout_offset, stderr_offset)))
    }

    fn cancel(&self, id: &str) -> Result<(), Failure> {
        self.bare.commands().find(id)?.cancel();
        Ok(())
    }
}

fn events(output: Output) -> Events {
    Box::pin(futures_util::stream::unfold(output, async |mut output| {
        let event = output.next().await?;
        Some((event, output))
    }))
}

/// A quarter of the memory: a request is there twice, as JSON and as what it says.
fn request_limit() -> usize {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total_kib: Option<usize> = total.and_then(|rest| rest.trim().split(' ').next()?.parse().ok());
    (total_kib.unwrap_or(64 << 10) << 10).div_euclid(4).min(MAX_REQUEST_BYTES)
}
