//! `skep keys reset-admin`: the way back for an operator whose keys are revoked or lost.

use std::{path::Path, process::ExitCode};

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use skep_accounts::{KeyHash, KeySecret};
use skep_api::{Environment, keys::Key};
use skep_keeper::{DataDir, replace_admin_key};
use skep_store::{EnsureAdminKey, KeyStore, RevokeKey, SqliteSettings, SqliteStore};

use super::exists;
use crate::{connection::block_on, output, privileges::as_owner_of, random, settings::DataDirOption};

/// Replace the admin key in DATA_DIR/admin.key, also if it was revoked or lost.
///
/// The new key has all scopes of the account `default`. The one that it replaces is revoked. This works on the server's machine
/// only; a server may keep running.
#[derive(Debug, Args)]
pub(super) struct ResetAdmin {
    /// Print the record of the new key as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data_dir: DataDirOption,
}

pub(super) fn run(verb: &ResetAdmin) -> anyhow::Result<ExitCode> {
    let folder = verb.data_dir.folder()?;
    let (store, server_dir) = (folder.store(), folder.server_dir());
    if !exists(&store)? {
        bail!(
            "no store at {}: the first start of `skep serve` makes the key; for another data directory, give --data-dir",
            store.display()
        );
    }
    let secret = KeySecret::from_random(Environment::Prod, random::bytes()?);
    // In the store first: a key that no server knows must not replace one that is valid.
    let key = as_owner_of(&server_dir, || block_on(create(&store, &secret)))?;
    let former = replace_admin_key(&DataDir::open(folder.path())?, &secret)?;
    if let Some(former) = former {
        let hash = former.sha256.parse()?;
        as_owner_of(&server_dir, || block_on(revoke(&store, hash)))?;
    }
    if verb.json {
        output::value(&key)?;
    } else {
        let file = folder.admin_key();
        output::line(&format!(
            "{} holds the new admin key {}; the former one is revoked",
            file.display(),
            key.id
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn create(store: &Path, secret: &KeySecret) -> anyhow::Result<Key> {
    let store = SqliteStore::open(SqliteSettings::at(store.to_owned())).await?;
    let (hash, prefix) = (secret.hash(), secret.prefix().to_owned());
    Ok(store.ensure_admin_key(EnsureAdminKey { hash, prefix, at: Timestamp::now() }).await?.key)
}

async fn revoke(store: &Path, hash: KeyHash) -> anyhow::Result<()> {
    let store = SqliteStore::open(SqliteSettings::at(store.to_owned())).await?;
    if let Some(found) = store.key_by_hash(hash).await? {
        let key = found.record.key;
        let command = RevokeKey { account: key.account, id: key.id, at: Timestamp::now(), request_id: None };
        store.revoke_key(command).await?;
    }
    Ok(())
}
