//! `skep keys`: straight into the store, whether a server runs or not.

use std::{fs, path::Path, process::ExitCode};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use skep_accounts::{DEFAULT_ACCOUNT, KeySecret, Target, grant, rotation};
use skep_api::{
    AccountId, Environment, ErrorCode, KeyId, Role, Scope, VmId,
    exec::VmField,
    keys::{CreateKey, CreatedKey, Key, KeyList, RevokedKeys, RotateKey},
};
use skep_store::{Account, ListKeys, NewKey, RevokeAllKeys, RevokeKey, SqliteSettings, SqliteStore, Store};

use crate::{connection::block_on, output, privileges::become_owner_of, random, settings::Settings};

/// Keys on one page of the store.
const PAGE: u32 = 500;

/// Create, list, rotate and revoke keys, straight in the store: no server needs to run.
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
    /// Make a key like another one, which stays valid until it is revoked; it is shown this once.
    Rotate(Rotate),
    /// Revoke keys; streams of a server that runs end within 5 seconds.
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
struct Rotate {
    /// The key's id.
    #[arg(value_name = "ID")]
    id: KeyId,
    /// When the new key ends by itself, or `never` [default: when the old one does].
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    expires_at: Option<Expiry>,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, Args)]
struct Revoke {
    /// The keys' ids.
    #[arg(required_unless_present = "all", value_name = "ID")]
    ids: Vec<KeyId>,
    /// All keys of the account but the admin key in DATA_DIR/admin.key, which the commands on this machine use.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// With --all: that one too.
    #[arg(long, requires = "all")]
    own: bool,
    #[command(flatten)]
    place: Place,
}

/// When a key ends by itself; `None` is never.
#[derive(Debug, Clone, Copy)]
struct Expiry(Option<Timestamp>);

fn expiry(text: &str) -> Result<Expiry, jiff::Error> {
    if text == "never" { Ok(Expiry(None)) } else { Ok(Expiry(Some(text.parse()?))) }
}

#[derive(Debug, Args)]
struct Place {
    #[command(flatten)]
    settings: Settings,
    /// The account whose keys they are, by name or id.
    #[arg(long, value_name = "ACCOUNT", default_value = DEFAULT_ACCOUNT)]
    account: String,
    /// Print what the API would answer.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(verb: Keys) -> anyhow::Result<ExitCode> {
    let place = match &verb.verb {
        Verb::Create(Create { place, .. })
        | Verb::List(List { place })
        | Verb::Rotate(Rotate { place, .. })
        | Verb::Revoke(Revoke { place, .. }) => place,
    };
    let store = place.settings.store();
    if !store.try_exists().with_context(|| format!("{} cannot be looked at", store.display()))? {
        bail!("no store at {}: start `skep serve` once, or name its place by --data-dir", store.display());
    }
    // Only root may read it, and root we are no longer afterwards.
    let own = own_key(&place.settings.admin_key());
    become_owner_of(&place.settings.server_dir())?;
    let named = place.account.clone();
    block_on(async {
        let store = SqliteStore::open(SqliteSettings::at(store)).await?;
        let account = match named.parse::<AccountId>() {
            Ok(id) => store.account(id).await,
            Err(_) => store.account_by_name(&named).await,
        };
        let account = account.map_err(|error| match error.code() {
            ErrorCode::UnknownAccount => anyhow!("no account `{named}`; `skep account list` lists them"),
            _ => error.into(),
        })?;
        match verb.verb {
            Verb::Create(verb) => create(&store, &account, verb).await,
            Verb::List(verb) => list(&store, &account, verb).await,
            Verb::Rotate(verb) => rotate(&store, &account, verb).await,
            Verb::Revoke(verb) if verb.all => revoke_all(&store, &account, own, verb).await,
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
        account: None,
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
    show(&created, verb.place.json)
}

/// The key, this once.
fn show(created: &CreatedKey, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        output::value(created)?;
    } else {
        output::line(&created.key)?;
        output::say(&format!("{}: keep it, it is not shown again", created.record.id));
    }
    Ok(ExitCode::SUCCESS)
}

async fn rotate(store: &dyn Store, account: &Account, verb: Rotate) -> anyhow::Result<ExitCode> {
    let at = Timestamp::now();
    let request = RotateKey { expires_at: verb.expires_at.map(|Expiry(end)| end) };
    let old = store.key(account.id, verb.id).await?.key;
    // Who may read the store may give everything.
    let expires_at = rotation(&old, &request, Scope::ALL, at)?;
    let secret = KeySecret::from_random(old.environment, random::bytes()?);
    let record = store.rotate_key(skep_store::RotateKey {
        account: account.id,
        id: old.id,
        hash: secret.hash(),
        prefix: secret.prefix().to_owned(),
        expires_at,
        at,
        request_id: None,
    });
    let created = CreatedKey { key: secret.expose().to_owned(), record: record.await?.key };
    show(&created, verb.place.json)
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
        let state = match (key.revoked_at, key.expires_at, key.rotated_at) {
            (Some(_), _, _) => "revoked",
            (None, Some(end), _) if end <= now => "expired",
            (None, _, Some(_)) => "rotated",
            (None, _, None) => "valid",
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

/// The key that the commands on this machine use, where we may read it.
fn own_key(path: &Path) -> Option<KeySecret> {
    KeySecret::parse(fs::read_to_string(path).ok()?.trim()).ok()
}

async fn revoke_all(
    store: &dyn Store,
    account: &Account,
    own: Option<KeySecret>,
    verb: Revoke,
) -> anyhow::Result<ExitCode> {
    let spared = match own.filter(|_| !verb.own) {
        Some(secret) => store.key_by_hash(secret.hash()).await?.map(|found| found.record.key.id),
        None => None,
    };
    let (at, request_id) = (Timestamp::now(), None);
    let command = RevokeAllKeys { account: account.id, except: spared, at, request_id };
    let revoked = store.revoke_all_keys(command).await?;
    if verb.place.json {
        output::value(&RevokedKeys { revoked })?;
    } else {
        output::line(&format!("{revoked} keys of `{}` are revoked", account.name))?;
    }
    Ok(ExitCode::SUCCESS)
}
