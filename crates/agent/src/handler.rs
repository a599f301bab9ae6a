//! Handles the requests of the host.

use std::{
    collections::BTreeMap,
    fs,
    sync::{Arc, PoisonError, RwLock},
};

use bytes::Bytes;
use skep_api::{
    Failure,
    exec::RunCommand,
    swarm::API_URL_VARIABLE,
    tickets::{TICKET_FILE_VARIABLES, TICKET_VARIABLES},
};
use skep_channel::{
    Content, FreezeReport, FreezeRequest, GuestUsage, HandOut, HandOutReport, Identity, IdentityReport,
    ThawRequest, TimeAndSeed,
    guest::{Events, Handler},
};
use skep_host::events;
use skep_workspace::{Commands, Place, run_by_name, run_streamed_by_name};

use crate::{
    error::{Error, StepContext},
    files::PriorUse,
    freeze::Freezer,
    groups, hooks, identity, settle, usage,
};

const HOME: &str = "/root";
/// The environment of all programs.
pub(crate) const BASE_ENV: [(&str, &str); 6] = [
    ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
    ("HOME", HOME),
    ("USER", "root"),
    ("LOGNAME", "root"),
    ("SHELL", "/bin/bash"),
    ("LANG", "C.UTF-8"),
];
/// The longest request in a guest with enough memory, in bytes.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// The agent's state. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Agent {
    /// The workspace without the environment of an owner.
    base: Place,
    owner: Arc<RwLock<Ownership>>,
    freezer: Freezer,
    request_limit: usize,
}

#[derive(Debug, Clone, Default)]
enum Ownership {
    /// A snapshot has no identity.
    #[default]
    NoIdentity,
    /// The VM has an identity but no owner.
    NoOwner,
    /// Commands run in this workspace.
    Owned(Place),
}

impl Agent {
    pub(crate) fn new() -> Self {
        let env: BTreeMap<_, _> = BASE_ENV.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let base = Place::new("/", HOME, env, groups::PARENT);
        let freezer = Freezer::new(groups::PARENT);
        Self { base, owner: Arc::default(), freezer, request_limit: request_limit() }
    }

    pub(crate) fn commands(&self) -> Commands {
        self.base.commands().clone()
    }

    fn owner(&self) -> Ownership {
        self.owner.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_owner(&self, owner: Ownership) {
        *self.owner.write().unwrap_or_else(PoisonError::into_inner) = owner;
    }

    /// The owner that an identity assigns. A copy keeps the environment of the VM that it was copied from only by
    /// `keeps_env`, and never what belongs to the ticket of that VM.
    fn next_owner(
        &self,
        before: Ownership,
        env: Option<BTreeMap<String, String>>,
        keeps_env: bool,
    ) -> Ownership {
        match (before, env) {
            (Ownership::Owned(place), env) if keeps_env => {
                Ownership::Owned(without_ticket(&place).with_env(&env.unwrap_or_default()))
            }
            (_, Some(env)) => Ownership::Owned(self.base.with_env(&env)),
            (_, None) => Ownership::NoOwner,
        }
    }

    /// The workspace for commands. Commands of users run only in a VM that has an owner.
    fn place(&self) -> Result<Place, Error> {
        match self.owner() {
            Ownership::NoIdentity => Err(Error::NoIdentity),
            Ownership::NoOwner => Err(Error::NoOwner),
            Ownership::Owned(place) => Ok(place),
        }
    }
}

impl Handler for Agent {
    fn request_limit(&self) -> usize {
        self.request_limit
    }

    async fn set_identity(&self, identity: Identity) -> Result<IdentityReport, Failure> {
        // A VM restored from a template has no owner; a copy of a running VM has one.
        let owner = self.owner();
        let prior_use = if matches!(owner, Ownership::Owned(_)) { PriorUse::Some } else { PriorUse::None };
        let report = identity::apply(&identity, prior_use)?;
        // Commands keep running and stay known: a copy goes on with those of the VM that it was copied from.
        self.set_owner(self.next_owner(owner, identity.env, identity.keeps_env));
        if prior_use == PriorUse::Some {
            hooks::run().await;
        }
        // Last: everything is in place when the programs of a copy run again. Those of a copy without an owner wait for
        // its hand-out.
        if matches!(self.owner(), Ownership::Owned(_)) {
            self.freezer.thaw(None)?;
        }
        Ok(report)
    }

    async fn hand_out(&self, hand_out: HandOut) -> Result<HandOutReport, Failure> {
        if matches!(self.owner(), Ownership::NoIdentity) {
            return Err(Error::NoIdentity.into());
        }
        let report = identity::set_time_and_seed(&hand_out.moment)?;
        self.base.commands().forget_ended();
        self.set_owner(Ownership::Owned(self.base.with_env(&hand_out.env)));
        self.freezer.thaw(None)?;
        Ok(report)
    }

    async fn set_clock(&self, moment: TimeAndSeed) -> Result<HandOutReport, Failure> {
        if matches!(self.owner(), Ownership::NoIdentity) {
            return Err(Error::NoIdentity.into());
        }
        Ok(identity::set_time_and_seed(&moment)?)
    }

    async fn freeze(&self, request: FreezeRequest) -> Result<FreezeReport, Failure> {
        // Only a VM with an owner has programs to copy.
        self.place()?;
        Ok(self.freezer.freeze(&request).await?)
    }

    async fn thaw(&self, request: ThawRequest) -> Result<(), Failure> {
        Ok(self.freezer.thaw(request.token.as_deref())?)
    }

    // A process that joins a frozen group stops before it executes its program, and the agent waits for that without
    // end.
    async fn until_thawed(&self) {
        self.freezer.until_thawed().await;
    }

    async fn rest(&self) -> Result<(), Failure> {
        self.base.commands().remove_ended_groups();
        tokio::time::sleep(settle::QUIET_PERIOD).await;
        Ok(())
    }

    async fn settle(&self) -> Result<(), Failure> {
        Ok(settle::settle(&self.base).await?)
    }

    fn usage(&self) -> Result<GuestUsage, Failure> {
        Ok(usage::read().context("read the usage")?)
    }

    async fn run(&self, call: &str, name: &str, request: Vec<u8>) -> Result<Vec<u8>, Failure> {
        Ok(run_by_name(name, &request, &self.place()?.for_call(call)).await?)
    }

    async fn run_streamed(
        &self,
        name: &str,
        request: Bytes,
        content: Content,
    ) -> Result<(Vec<u8>, Content), Failure> {
        Ok(run_streamed_by_name(name, &request, content, &self.place()?).await?)
    }

    fn start(&self, id: &str, command: RunCommand) -> Result<Events, Failure> {
        let place = self.place()?;
        let command = place.commands().start(id, &command, &place)?;
        Ok(events(command.attach(0, 0)))
    }

    fn attach(&self, id: &str, stdout_offset: u64, stderr_offset: u64) -> Result<Events, Failure> {
        Ok(events(self.base.commands().find(id)?.attach(stdout_offset, stderr_offset)))
    }

    fn cancel(&self, id: &str) -> Result<(), Failure> {
        self.base.commands().find(id)?.cancel();
        Ok(())
    }
}

/// The workspace without the variables that the server set for the ticket of the VM, such as the VM's key. The server sets all of
/// them but the API address, which it may not know. If one is missing, variables of these names are the caller's own and stay.
fn without_ticket(place: &Place) -> Place {
    let names = TICKET_VARIABLES.into_iter().chain(TICKET_FILE_VARIABLES.map(|(name, _)| name));
    let mut always_set = names.clone().filter(|name| *name != API_URL_VARIABLE);
    if always_set.all(|name| place.env().contains_key(name)) {
        place.without_env(names)
    } else {
        place.clone()
    }
}

/// A quarter of the memory: a request is held twice, as JSON and parsed.
fn request_limit() -> usize {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = usize::try_from(groups::memory_kib(&meminfo, "MemTotal:") << 10).unwrap_or(usize::MAX);
    // If the value is missing, the smallest memory of a guest is assumed.
    (total.max(64 << 20) / 4).min(MAX_REQUEST_BYTES)
}

#[cfg(test)]
mod tests {
    use skep_api::exec::Stdin;
    use skep_workspace::Run;

    use super::*;

    /// The output of a command that prints the variables of these tests. `None` if the VM has no owner.
    async fn variables(owner: Ownership) -> Option<String> {
        let Ownership::Owned(place) = owner else { return None };
        let command = RunCommand {
            command: "echo ${KEPT-none} ${BOTH-none} ${ADDED-none}".to_owned(),
            cwd: Some("/".to_owned()),
            env: BTreeMap::new(),
            stdin: Stdin::Empty,
            timeout_ms: 60_000,
        };
        Some(command.run(&place.without_groups()).await.unwrap().stdout)
    }

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_copy_drops_the_variables_of_the_ticket_of_its_original_and_keeps_its_own() {
        let agent = Agent::new();
        let own =
            [("OWN", "kept"), ("SKEP_API_KEY", "old"), ("SKEP_URL", "old"), ("SKEP_TICKET_FILE", "old")];
        let of_ticket =
            [("SKEP_TICKET_ID", "old"), ("SKEP_TICKET_ATTEMPT", "1"), ("SKEP_RESULT_FILE", "old")];
        let with_ticket = [&own[..], &of_ticket[..]].concat();
        let given = [("SKEP_TICKET_ID", "new"), ("SKEP_API_KEY", "new")];
        for (before, env, wanted) in [
            (&with_ticket[..], &given[..0], map(&own[..1])),
            (&with_ticket[..], &given[..], map(&[&own[..1], &given[..]].concat())),
            (&own[..], &given[..0], map(&own)),
            (&of_ticket[..], &given[..0], map(&of_ticket)),
        ] {
            let before = Ownership::Owned(agent.base.with_env(&map(before)));
            let Ownership::Owned(place) = agent.next_owner(before, Some(map(env)), true) else {
                panic!("the copy has no owner")
            };
            assert_eq!(place.env(), agent.base.with_env(&wanted).env());
        }
    }

    #[tokio::test]
    async fn a_copy_keeps_variables_only_if_it_is_told_to() {
        let agent = Agent::new();
        let original = || Ownership::Owned(agent.base.with_env(&map(&[("KEPT", "old"), ("BOTH", "old")])));
        let added = || Some(map(&[("BOTH", "new"), ("ADDED", "new")]));
        for (before, env, keeps_env, wanted) in [
            (original(), added(), true, Some("old new new\n")),
            (original(), None, true, Some("old old none\n")),
            (original(), added(), false, Some("none new new\n")),
            (original(), None, false, None),
            (Ownership::NoIdentity, added(), true, Some("none new new\n")),
            (Ownership::NoIdentity, None, true, None),
        ] {
            let owner = agent.next_owner(before, env, keeps_env);
            assert_eq!(variables(owner).await.as_deref(), wanted, "{keeps_env}");
        }
    }
}
