//! `skep keys`: straight into the store, whether a server runs or not.

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use skep_accounts::{DEFAULT_ACCOUNT, KeySecret, Target, grant};
use skep_api::{
    Environment, KeyId, Role, Scope, VmId,
    exec::VmField,
    keys::{CreateKey, CreatedKey, Key, KeyList},
};
use skep_store::{Account, ListKeys, NewKey, RevokeKey, SqliteSettings, SqliteStore, Store};

use crate::{connection::block_on, output, privileges::become_owner_of, random, settings::Settings};

/// Keys on one page of the store.
const PAGE: u32 = 500;

/// Create, list and revoke keys of the account `default`; no server needs to run.
#[derive(Debug, Args)]
pub(crate) struct Keys {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a key; it is shown this once.
    Create(Create),
    /// List the keys, newest first.
    List(List),
    /// Revoke keys.
    Revoke(Revoke),
}

#[derive(Debug, Args)]
struct Create {
    /// 1 to 100 characters, unique among the keys that are valid.
    #[arg(long)]
    name: String,
    /// A preset of scopes: agent, operator, admin, or vm.
    #[arg(long, required_unless_present = "scope")]
    role: Option<Role>,
    /// The scopes one by one, such as swarm:read; may be given several times.
    #[arg(long, value_delimiter = ',', conflicts_with = "role")]
    scope: Vec<Scope>,
    /// The environment in the key's name: prod, staging, dev or test.
    #[arg(long)]
    environment: Option<Environment>,
    /// When it ends by itself, such as 2027-01-01T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    expires_at: Option<Timestamp>,
    /// The VM that a key with role vm is bound to, by its id.
    #[arg(long, value_name = "ID")]
    vm: Option<VmId>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Revoke {
    /// The keys' ids.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<KeyId>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Place {
    #[command(flatten)]
    settings: Settings,
    /// Print what the API would answer.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(verb: Keys) -> anyhow::Result<ExitCode> {
    let place = match &verb.verb {
        Verb::Create(Create { place, .. })
        | Verb::List(List { place })
        | Verb::Revoke(Revoke { place, .. }) => place,
    };
    let store = place.settings.store();
    if !store.try_exists().with_context(|| format!("{} cannot be looked at", store.display()))? {
        bail!("no store at {}: start `skep serve` once, or name its place by --data-dir", store.display());
    }
    become_owner_of(&place.settings.server_dir())?;
    block_on(async {
        let store = SqliteStore::open(SqliteSettings::at(store)).await?;
        let account = store.account_by_name(DEFAULT_ACCOUNT).await?;
        match verb.verb {
            Verb::Create(verb) => create(&store, &account, verb).await,
            Verb::List(verb) => list(&store, &account, verb).await,
            Verb::Revoke(verb) => revoke(&store, &account, verb).await,
        }
    })
}

async fn create(store: &dyn Store, account: &Account, verb: Create) -> anyhow::Result<ExitCode> {
    let now = Timestamp::now();
    let request = CreateKey {
        name: verb.name,
        environment: verb.environment,
        role: verb.role,
        scopes: if verb.scope.is_empty() { None } else { Some(verb.scope) },
        expires_at: verb.expires_at,
        vm: verb.vm.map(|vm| VmField::Text(vm.to_string())),
    };
    // Who may read the store may give everything.
    let granted = grant(&request, Target { account: &account.name, creator: Scope::ALL }, now)?;
    let secret = KeySecret::from_random(granted.environment, random::bytes()?);
    let record = store.create_key(NewKey {
        account: account.id,
        name: granted.name,
        environment: granted.environment,
        role: granted.role,
        scopes: granted.scopes,
        vm: verb.vm,
        hash: secret.hash(),
        prefix: secret.prefix().to_owned(),
        expires_at: granted.expires_at,
        at: now,
        request_id: None,
    });
    let created = CreatedKey { key: secret.expose().to_owned(), record: record.await?.key };
    if verb.place.json {
        output::value(&created)?;
    } else {
        output::line(&created.key)?;
        output::say(&format!("{}: keep it, it is not shown again", created.record.id));
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(store: &dyn Store, account: &Account, verb: List) -> anyhow::Result<ExitCode> {
    let mut keys: Vec<Key> = Vec::new();
    let mut before = None;
    loop {
        let page = store.list_keys(ListKeys { account: account.id, limit: PAGE, before }).await?;
        keys.extend(page.keys.into_iter().map(|record| record.key));
        before = page.next;
        if before.is_none() {
            break;
        }
    }
    if verb.place.json {
        output::value(&KeyList { keys, next_cursor: None })?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = Timestamp::now();
    let row = |key: &Key| {
        let state = match (key.revoked_at, key.expires_at) {
            (Some(_), _) => "revoked",
            (None, Some(end)) if end <= now => "expired",
            _ => "valid",
        };
        let may = key.role.map_or_else(|| scopes(&key.scopes), |role| role.to_string());
        [
            key.id.to_string(),
            key.prefix.clone(),
            key.name.clone(),
            may,
            state.to_owned(),
            output::time(Some(key.created_at)),
            output::time(key.last_used_at),
        ]
    };
    output::table(["ID", "PREFIX", "NAME", "MAY", "STATE", "CREATED", "LAST USED"], keys.iter().map(row))?;
    Ok(ExitCode::SUCCESS)
}

fn scopes(scopes: &[Scope]) -> String {
    scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(",")
}

async fn revoke(store: &dyn Store, account: &Account, verb: Revoke) -> anyhow::Result<ExitCode> {
    for id in verb.ids {
        let command = RevokeKey { account: account.id, id, at: Timestamp::now(), request_id: None };
        let key = store.revoke_key(command).await?.key;
        if verb.place.json {
            output::value(&key)?;
        } else {
            output::line(&format!("{} {} is revoked", key.id, key.name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
