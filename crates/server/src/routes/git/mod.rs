//! `/api/git`: repositories of the workspace, or of a VM.

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
    places::{Chosen, Places},
    vault::Vault,
};

/// What these routes use.
#[derive(Clone)]
pub(crate) struct GitDesk {
    /// Where operations are done.
    pub places: Places,
    /// Tokens.
    pub vault: Vault,
    /// Private addresses and hosts that git may reach.
    pub allow: Arc<[String]>,
}

/// The routes of this folder.
pub(crate) fn routes(desk: GitDesk) -> Routes {
    let mut all = read::routes(&desk);
    all.extend(write::routes(&desk));
    all.extend(network::routes(&desk));
    all.extend(make::routes(&desk));
    all.extend(history::routes(&desk));
    all.extend(remotes::routes(&desk));
    all.extend(credentials::routes(desk.vault));
    all
}

impl GitDesk {
    /// What git may reach from the server.
    async fn reach(&self, caller: &Identity) -> Result<GitReach, Refusal> {
        let credentials = self.vault.open(caller.account.id).await?;
        Ok(GitReach { allow: self.allow.to_vec(), anywhere: false, credentials })
    }

    /// What filters may reach that run there: the operator names some for the server alone.
    async fn reach_of_filters(&self, chosen: &Chosen, caller: &Identity) -> Result<GitReach, Refusal> {
        match chosen {
            Chosen::Workspace => self.reach(caller).await,
            Chosen::Vm(_) => Ok(GitReach::default()),
        }
    }
}

/// Who commits where the caller names nobody: the key.
fn key_as_person(caller: &Identity) -> Person {
    let crud = |character: char| character <= ' ' || ".,:;<>\"\\'".contains(character);
    let name = if caller.key.name.chars().all(crud) { "skep".to_owned() } else { caller.key.name.clone() };
    Person { name, email: format!("{}@skep.invalid", caller.key.id) }
}

fn path(field: &str, text: &str, encoding: Option<PathEncoding>) -> Result<AbsolutePath, Failure> {
    AbsolutePath::parse(field, text, encoding.unwrap_or_default())
}

fn any_path(text: Option<&str>, encoding: Option<PathEncoding>) -> Result<Option<AbsolutePath>, Failure> {
    text.map(|text| path("path", text, encoding)).transpose()
}

/// Where a write is done, noted for the audit.
fn written(vm: Option<&VmField>, call: &crate::extract::Call) -> Result<Chosen, Failure> {
    let chosen = Chosen::by_field(vm)?;
    Places::note(&chosen, &call.trail);
    Ok(chosen)
}

/// A text that git is given as an argument.
fn word(field: &str, text: String) -> Result<String, Failure> {
    if text.contains('\0') {
        return Err(Failure::new(
            ErrorCode::InvalidValue,
            format!("`{field}` holds a zero byte; leave it out"),
        ));
    }
    Ok(text)
}
