//! `/api/git`: repositories of the workspace or of a VM.

pub(crate) mod credentials;
mod exchange;
mod history;
mod make;
mod network;
mod read;
mod remotes;
mod write;

use std::sync::Arc;

use skep_api::{
    AbsolutePath, ErrorCode, Failure,
    exec::VmField,
    git::{GitReach, Person},
    path::PathEncoding,
};

use super::Routes;
use crate::{
    auth::Identity,
    error::Refusal,
    places::{Places, Target},
    vault::Vault,
};

#[derive(Clone)]
pub(crate) struct GitState {
    pub places: Places,
    pub vault: Vault,
    /// Private addresses and hosts that git may reach.
    pub allow: Arc<[String]>,
}

pub(crate) fn routes(state: GitState) -> Routes {
    let mut all = read::routes(&state);
    all.extend(write::routes(&state));
    all.extend(network::routes(&state));
    all.extend(make::routes(&state));
    all.extend(history::routes(&state));
    all.extend(remotes::routes(&state));
    all.extend(credentials::routes(state.vault));
    all
}

impl GitState {
    /// The hosts that git on the server may reach, and its credentials.
    async fn reach(&self, caller: &Identity) -> Result<GitReach, Refusal> {
        let credentials = self.vault.open(caller.account.id).await?;
        Ok(GitReach { allow: self.allow.to_vec(), anywhere: false, credentials })
    }

    /// What filters of git may reach in the chosen place. The operator's hosts and the credentials are for the server
    /// only.
    async fn reach_of_filters(&self, chosen: &Target, caller: &Identity) -> Result<GitReach, Refusal> {
        match chosen {
            Target::Workspace => self.reach(caller).await,
            Target::Vm(_) => Ok(GitReach::default()),
        }
    }
}

/// The default author of commits, derived from the calling key.
fn key_as_person(caller: &Identity) -> Person {
    let is_stripped_by_git = |character: char| character <= ' ' || ".,:;<>\"\\'".contains(character);
    let name = if caller.key.name.chars().all(is_stripped_by_git) {
        "skep".to_owned()
    } else {
        caller.key.name.clone()
    };
    Person { name, email: format!("{}@skep.invalid", caller.key.id) }
}

fn path(field: &str, text: &str, encoding: Option<PathEncoding>) -> Result<AbsolutePath, Failure> {
    AbsolutePath::parse(field, text, encoding.unwrap_or_default())
}

fn optional_path(
    text: Option<&str>,
    encoding: Option<PathEncoding>,
) -> Result<Option<AbsolutePath>, Failure> {
    text.map(|text| path("path", text, encoding)).transpose()
}

/// The place of a write operation, which is also recorded for the audit log.
fn place_of_write(vm: Option<&VmField>, call: &crate::extract::RequestInfo) -> Result<Target, Failure> {
    let chosen = Target::from_field(vm)?;
    Places::record_resource(&chosen, &call.audit);
    Ok(chosen)
}

/// Checks a text that is passed to git as an argument.
fn check_argument(field: &str, text: String) -> Result<String, Failure> {
    if text.contains('\0') {
        return Err(Failure::new(
            ErrorCode::InvalidValue,
            format!("`{field}` holds a NUL byte; leave it out"),
        ));
    }
    Ok(text)
}
