//! `skep keys`: by the API, or directly in a store on this machine.

mod backend;
mod expiry;
mod reset_admin;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use skep_accounts::DEFAULT_ACCOUNT;
use skep_api::{
    Environment, KeyId, Role, Scope,
    exec::VmField,
    keys::{CreateKey, CreatedKey, Key, KeyList, RotateKey},
};

use self::{
    backend::{Backend, read_admin_key},
    expiry::{Expiry, expiry, expiry_or_never},
    reset_admin::ResetAdmin,
};
use crate::{
    connection::{Connection, block_on},
    invocation::Invocation,
    output,
    privileges::become_owner_of,
    settings::DataFolder,
};

const WHERE: &str = "If a server or a key is given (--url, --api-key, SKEP_URL or SKEP_API_KEY), the verb uses the API. \
Otherwise, or with --data-dir and neither flag, it uses the store in the data directory; a server may keep running.";

/// Create, list, rotate and revoke API keys.
#[derive(Debug, Args)]
#[command(after_help = WHERE)]
pub(crate) struct Keys {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    #[command(flatten)]
    Anywhere(VerbAnywhere),
    /// Replace the admin key in DATA_DIR/admin.key, also if it was revoked or lost.
    ResetAdmin(ResetAdmin),
}

/// A verb that uses the API, or a store on this machine.
#[derive(Debug, Subcommand)]
enum VerbAnywhere {
    /// Create a key; it is printed only once.
    Create(Create),
    /// List the keys, newest first.
    List(List),
    /// Create a key with the same rights as another one, which stays valid until it is revoked; it is printed only once.
    Rotate(Rotate),
    /// Revoke keys; open streams of a revoked key end within 5 seconds.
    Revoke(Revoke),
}

#[derive(Debug, Args)]
#[command(after_help = WHERE)]
struct Create {
    /// Name of the key: 1 to 100 characters, unique among the valid keys.
    #[arg(long)]
    name: String,
    /// Preset of scopes: agent, operator, admin, or vm.
    #[arg(long, required_unless_present = "scope")]
    role: Option<Role>,
    /// Single scope, such as swarm:read; may be given several times.
    #[arg(long, value_delimiter = ',', conflicts_with = "role")]
    scope: Vec<Scope>,
    /// Environment in the key's text: prod, staging, dev or test [default: prod].
    #[arg(long)]
    environment: Option<Environment>,
    /// When the key expires: a duration such as 30d, a date such as 2027-01-31 (its beginning, UTC), or a time such as
    /// 2027-01-31T12:00:00Z [default: never].
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    expires_at: Option<Timestamp>,
    /// VM that a key with role vm is bound to: process id, id, name, host name or address.
    #[arg(long, value_name = "VM")]
    vm: Option<String>,
    #[command(flatten)]
    place: BackendOptions,
}

#[derive(Debug, Args)]
#[command(after_help = WHERE)]
struct List {
    /// Also list the keys of VMs that have ended; --json always lists them.
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    place: BackendOptions,
}

#[derive(Debug, Args)]
#[command(after_help = WHERE)]
struct Rotate {
    /// Id of the key.
    #[arg(value_name = "ID")]
    id: KeyId,
    /// When the new key expires: a duration, a date or a time, as in `skep keys create`, or `never` [default: when the
    /// old one expires].
    #[arg(long, value_name = "TIME", value_parser = expiry_or_never)]
    expires_at: Option<Expiry>,
    #[command(flatten)]
    place: BackendOptions,
}

#[derive(Debug, Args)]
#[command(after_help = WHERE)]
struct Revoke {
    /// Ids of the keys.
    #[arg(required_unless_present = "all", value_name = "ID")]
    ids: Vec<KeyId>,
    /// Revoke all keys of the account except the one in use: the key of the call or, in a store, the one in
    /// DATA_DIR/admin.key.
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// With --all: also revoke the key in use.
    #[arg(long, requires = "all")]
    own: bool,
    #[command(flatten)]
    place: BackendOptions,
}

#[derive(Debug, Args)]
struct BackendOptions {
    /// Account of the keys, by name or id [default: that of the key in use; in a store, `default`].
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<String>,
    #[command(flatten)]
    connection: Connection,
    /// TOML file with settings; only its `data_dir` is used.
    #[arg(long, env = "SKEP_CONFIG", value_name = "FILE", help_heading = "Connection")]
    config: Option<PathBuf>,
}

impl BackendOptions {
    fn is_api(&self) -> bool {
        let invocation = Invocation::current();
        let has_flag = invocation.has_flag("url") || invocation.has_flag("api_key");
        has_flag || self.connection.is_given() && !invocation.has_flag("data_dir")
    }
}

impl VerbAnywhere {
    fn options(&self) -> &BackendOptions {
        match self {
            Self::Create(Create { place, .. })
            | Self::List(List { place, .. })
            | Self::Rotate(Rotate { place, .. })
            | Self::Revoke(Revoke { place, .. }) => place,
        }
    }

    async fn run(self, backend: &Backend) -> anyhow::Result<ExitCode> {
        match self {
            Self::Create(verb) => create(backend, verb).await,
            Self::List(verb) => list(backend, verb).await,
            Self::Rotate(verb) => rotate(backend, verb).await,
            Self::Revoke(verb) if verb.all => revoke_all(backend, verb).await,
            Self::Revoke(verb) => revoke(backend, verb).await,
        }
    }
}

pub(crate) fn run(Keys { verb }: Keys) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Anywhere(verb) => run_anywhere(verb),
        Verb::ResetAdmin(verb) => reset_admin::run(&verb),
    }
}

fn run_anywhere(verb: VerbAnywhere) -> anyhow::Result<ExitCode> {
    let place = verb.options();
    if place.is_api() {
        let (client, account) = (place.connection.client()?, place.account.clone());
        return block_on(async {
            let backend = Backend::by_api(client, account.as_deref()).await?;
            verb.run(&backend).await
        });
    }
    let folder = DataFolder::at(&place.connection.data_dir)?;
    let store = folder.store();
    if !exists(&store)? {
        bail!(
            "no store at {}: start `skep serve` once, name another data directory with --data-dir, or give --url or \
             SKEP_URL to use the API of a server",
            store.display()
        );
    }
    output::eprint_line(&format!(
        "skep: working in the store {}; give --url or SKEP_URL to use the API of a server",
        store.display()
    ));
    // Read as root, because the process changes its user in the next line.
    let own = read_admin_key(&folder.admin_key());
    become_owner_of(&folder.server_dir())?;
    let account = place.account.clone().unwrap_or_else(|| DEFAULT_ACCOUNT.to_owned());
    block_on(async {
        let backend = Backend::in_store(&store, &account, own).await?;
        verb.run(&backend).await
    })
}

fn exists(store: &Path) -> anyhow::Result<bool> {
    store.try_exists().with_context(|| format!("{} cannot be read", store.display()))
}

async fn create(backend: &Backend, verb: Create) -> anyhow::Result<ExitCode> {
    let request = CreateKey {
        name: verb.name,
        environment: verb.environment,
        role: verb.role,
        scopes: if verb.scope.is_empty() { None } else { Some(verb.scope) },
        expires_at: verb.expires_at,
        vm: verb.vm.map(VmField::Text),
        account: None,
    };
    show(&backend.create(request).await?, verb.place.connection.json)
}

/// Prints a new key and its expiry.
fn show(created: &CreatedKey, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        output::value(created)?;
    } else {
        output::line(&created.key)?;
        let expiry = match created.record.expires_at {
            Some(time) => format!("expires at {}", output::time(Some(time))),
            None => "does not expire".to_owned(),
        };
        output::eprint_line(&format!(
            "{}: it {expiry}; store it now, it is not printed again",
            created.record.id
        ));
    }
    Ok(ExitCode::SUCCESS)
}

async fn rotate(backend: &Backend, verb: Rotate) -> anyhow::Result<ExitCode> {
    let request = RotateKey { expires_at: verb.expires_at.map(|Expiry(end)| end) };
    show(&backend.rotate(verb.id, &request).await?, verb.place.connection.json)
}

async fn list(backend: &Backend, verb: List) -> anyhow::Result<ExitCode> {
    let keys = backend.list().await?;
    if verb.place.connection.json {
        output::value(&KeyList { keys, next_cursor: None })?;
        return Ok(ExitCode::SUCCESS);
    }
    let now = Timestamp::now();
    let (shown, hidden): (Vec<Key>, Vec<Key>) =
        keys.into_iter().partition(|key| verb.all || !is_of_ended_vm(key));
    let row = |key: &Key| {
        let may = key.role.map_or_else(|| scopes(&key.scopes), |role| role.to_string());
        [
            key.id.to_string(),
            key.prefix.clone(),
            key.name.clone(),
            may,
            state(key, now).to_owned(),
            key.expires_at.map_or_else(|| "never".to_owned(), |time| output::time(Some(time))),
            output::time(Some(key.created_at)),
            output::time(key.last_used_at),
        ]
    };
    let header = ["ID", "PREFIX", "NAME", "MAY", "STATE", "EXPIRES", "CREATED", "LAST USED"];
    output::table(header, shown.iter().map(row))?;
    if !hidden.is_empty() {
        let count = output::counted(hidden.len() as u64, "key");
        output::eprint_line(&format!("{count} of VMs that have ended not listed; use --all"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the key's VM has ended: its key is then revoked.
fn is_of_ended_vm(key: &Key) -> bool {
    key.vm.is_some() && key.revoked_at.is_some()
}

fn state(key: &Key, now: Timestamp) -> &'static str {
    match (key.revoked_at, key.expires_at, key.rotated_at) {
        (Some(_), _, _) => "revoked",
        (None, Some(end), _) if end <= now => "expired",
        (None, _, Some(_)) => "rotated",
        (None, _, None) => "valid",
    }
}

fn scopes(scopes: &[Scope]) -> String {
    scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(",")
}

async fn revoke(backend: &Backend, verb: Revoke) -> anyhow::Result<ExitCode> {
    for id in verb.ids {
        let key = backend.revoke(id).await?;
        if verb.place.connection.json {
            output::value(&key)?;
        } else {
            output::line(&format!("{} {} is revoked", key.id, key.name))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn revoke_all(backend: &Backend, verb: Revoke) -> anyhow::Result<ExitCode> {
    let revoked = backend.revoke_all(verb.own).await?;
    if verb.place.connection.json {
        output::value(&revoked)?;
    } else {
        let account = backend.account().map(|account| format!(" of `{account}`")).unwrap_or_default();
        output::line(&format!("{}{account} revoked", output::counted(revoked.revoked, "key")))?;
        if revoked.kept > 0 {
            let kept = output::counted(revoked.kept, "key");
            output::eprint_line(&format!("{kept} not revoked, because your key lacks some of their scopes"));
        }
    }
    Ok(ExitCode::SUCCESS)
}
