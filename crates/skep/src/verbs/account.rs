//! `skep account`.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use skep_api::{
    AccountId,
    accounts::{
        Account as Record, AccountList, ChangeAccount, CreateAccount, DeleteAccount, DeletedAccount,
        GitRelay, ListAccounts, ReadAccount,
    },
    egress::{EgressPolicy, EgressPreset},
};
use skep_client::{Answered, Client};

use super::egress::{describe_policy, parse_policy, parse_preset, with_presets};
use crate::{connection::Connection, output};

/// Create, list, change and delete accounts.
///
/// Accounts are tenants with VMs, keys and files of their own.
#[derive(Debug, Args)]
pub(crate) struct Account {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create an account; `skep keys create --account NAME` creates its first key.
    Create(Create),
    /// List the accounts, newest first.
    List(List),
    /// Show an account.
    Show(Show),
    /// Change an account. Options that are not given stay unchanged.
    Set(Set),
    /// Delete accounts and revoke their keys; their files stay on the server.
    Delete(Delete),
}

#[derive(Debug, Args)]
struct Create {
    /// Name: 1 to 63 lowercase letters, digits and `-`.
    name: String,
    /// Folder for the account's files; may be given several times [default: DATA_DIR/workspaces/NAME, which the server
    /// creates].
    #[arg(long, value_name = "DIR")]
    root: Vec<PathBuf>,
    /// Network from which its keys may be used, such as 192.0.2.0/24; may be given several times [default: all].
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    allowed_ip: Vec<String>,
    /// Maximum number of running VMs [default: that of the server].
    #[arg(long, value_name = "NUMBER")]
    max_vms: Option<u32>,
    /// Maximum memory of all its VMs, in MiB [default: that of the server].
    #[arg(long, value_name = "MIB")]
    max_memory_mb: Option<u64>,
    /// Maximum number of VMs that are paused to disk [default: 1000].
    #[arg(long, value_name = "NUMBER")]
    max_paused_vms: Option<u32>,
    /// Maximum disk space of its files, templates, VMs on disk and disk layers of VMs together, in MiB [default: no limit].
    #[arg(long, value_name = "MIB")]
    max_disk_mb: Option<u64>,
    /// What its VMs may connect to if their boot does not say: `none`, `all`, or hosts and networks with commas between
    /// them [default: none].
    #[arg(long, value_name = "POLICY", value_parser = parse_policy)]
    egress: Option<EgressPolicy>,
    /// Also allow the hosts of this preset, such as `python`; may be given several times. `skep egress --presets` lists
    /// them.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_preset)]
    egress_preset: Vec<EgressPreset>,
    /// Which remotes git on the server may connect to for its VMs: `known`, which the policy of the VM permits or for which
    /// there is a git credential, or `any` [default: known].
    #[arg(long, value_name = "REMOTES", value_parser = parse_git_relay)]
    git_relay: Option<GitRelay>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
struct Show {
    /// Account, by name or id.
    account: String,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
struct Set {
    /// Account, by name or id.
    account: String,
    /// Folder for the account's files, instead of the current ones; may be given several times.
    #[arg(long, value_name = "DIR")]
    root: Vec<PathBuf>,
    /// Network from which its keys may be used, instead of the current ones; may be given several times.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    allowed_ip: Vec<String>,
    /// Allow its keys to be used from all networks.
    #[arg(long, conflicts_with = "allowed_ip")]
    any_ip: bool,
    /// Maximum number of running VMs, or `none` for that of the server.
    #[arg(long, value_name = "NUMBER", value_parser = limit::<u32>)]
    max_vms: Option<Limit<u32>>,
    /// Maximum memory of all its VMs, in MiB, or `none` for that of the server.
    #[arg(long, value_name = "MIB", value_parser = limit::<u64>)]
    max_memory_mb: Option<Limit<u64>>,
    /// Maximum number of VMs that are paused to disk, or `none` for 1000.
    #[arg(long, value_name = "NUMBER", value_parser = limit::<u32>)]
    max_paused_vms: Option<Limit<u32>>,
    /// Maximum disk space of its files, templates, VMs on disk and disk layers of VMs together, in MiB, or `none` for no limit.
    #[arg(long, value_name = "MIB", value_parser = limit::<u64>)]
    max_disk_mb: Option<Limit<u64>>,
    /// What its VMs may connect to if their boot does not say: `none`, `all`, or hosts and networks with commas between
    /// them. VMs that run keep their policy.
    #[arg(long, value_name = "POLICY", value_parser = parse_policy)]
    egress: Option<EgressPolicy>,
    /// Also allow the hosts of this preset, such as `python`; may be given several times. `skep egress --presets` lists
    /// them.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_preset)]
    egress_preset: Vec<EgressPreset>,
    /// Which remotes git on the server may connect to for its VMs: `known`, which the policy of the VM permits or for which
    /// there is a git credential, or `any`.
    #[arg(long, value_name = "REMOTES", value_parser = parse_git_relay)]
    git_relay: Option<GitRelay>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
struct Delete {
    /// Accounts, by name or id.
    #[arg(required = true, value_name = "ACCOUNT")]
    accounts: Vec<String>,
    /// Also end the VMs of the accounts; without it, an account with VMs is not deleted.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    connection: Connection,
}

/// A quota of an account; `None` is no quota.
#[derive(Debug, Clone, Copy)]
struct Limit<N>(Option<N>);

fn limit<N: std::str::FromStr<Err = std::num::ParseIntError>>(
    text: &str,
) -> Result<Limit<N>, std::num::ParseIntError> {
    if text == "none" { Ok(Limit(None)) } else { Ok(Limit(Some(text.parse()?))) }
}

fn parse_git_relay(word: &str) -> Result<GitRelay, String> {
    [GitRelay::Known, GitRelay::Any]
        .into_iter()
        .find(|remotes| remotes.as_str() == word)
        .ok_or_else(|| "give `known` or `any`".to_owned())
}

pub(crate) async fn run(verb: Account) -> anyhow::Result<ExitCode> {
    match verb.verb {
        Verb::Create(verb) => create(verb).await,
        Verb::List(verb) => list(verb).await,
        Verb::Show(verb) => {
            let client = verb.connection.client()?;
            let id = find(&client, &verb.account).await?;
            show(&client.run_on(id, &ReadAccount {}).await?, verb.connection.json)
        }
        Verb::Set(verb) => set(verb).await,
        Verb::Delete(verb) => delete(verb).await,
    }
}

async fn create(verb: Create) -> anyhow::Result<ExitCode> {
    let request = CreateAccount {
        name: verb.name,
        roots: non_empty(absolute_paths(&verb.root)?),
        allowed_ips: non_empty(verb.allowed_ip),
        max_vms: verb.max_vms,
        max_memory_mb: verb.max_memory_mb,
        max_paused_vms: verb.max_paused_vms,
        max_disk_mb: verb.max_disk_mb,
        egress: with_presets(verb.egress, &verb.egress_preset)?,
        git_relay: verb.git_relay,
    };
    show(&verb.connection.client()?.run(&request).await?, verb.connection.json)
}

async fn set(verb: Set) -> anyhow::Result<ExitCode> {
    let change = ChangeAccount {
        roots: non_empty(absolute_paths(&verb.root)?),
        allowed_ips: if verb.any_ip { Some(Vec::new()) } else { non_empty(verb.allowed_ip) },
        max_vms: verb.max_vms.map(|Limit(limit)| limit),
        max_memory_mb: verb.max_memory_mb.map(|Limit(limit)| limit),
        max_paused_vms: verb.max_paused_vms.map(|Limit(limit)| limit),
        max_disk_mb: verb.max_disk_mb.map(|Limit(limit)| limit),
        egress: with_presets(verb.egress, &verb.egress_preset)?,
        git_relay: verb.git_relay,
    };
    if change == ChangeAccount::default() {
        bail!("no change was given; `skep account set --help` lists the options");
    }
    let client = verb.connection.client()?;
    let id = find(&client, &verb.account).await?;
    show(&client.run_on(id, &change).await?, verb.connection.json)
}

async fn delete(verb: Delete) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let request = DeleteAccount { force: verb.force };
    let mut code = ExitCode::SUCCESS;
    for account in &verb.accounts {
        // A failure does not stop the loop: the other accounts are still deleted.
        let deleted = async { anyhow::Ok(client.run_on(find(&client, account).await?, &request).await?) };
        match deleted.await {
            Ok(deleted) if verb.connection.json => output::json(&deleted.text)?,
            Ok(deleted) => show_deleted(&deleted)?,
            Err(error) => code = output::report_error(&error),
        }
    }
    Ok(code)
}

fn show_deleted(deleted: &DeletedAccount) -> std::io::Result<()> {
    output::line(&format!(
        "{} {} is deleted: {} revoked, {} ended",
        deleted.id,
        deleted.name,
        output::counted(deleted.keys_revoked, "key"),
        output::counted(deleted.vms_ended, "VM")
    ))?;
    if deleted.kept_roots.is_empty() {
        return Ok(());
    }
    let roots = deleted.kept_roots.join(", ");
    output::line(&format!(
        "its files stay on the server, in {roots}; remove them by hand. Its audit entries are kept."
    ))
}

async fn list(verb: List) -> anyhow::Result<ExitCode> {
    let accounts = all(&verb.connection.client()?).await?;
    if verb.connection.json {
        output::value(&AccountList { accounts, next_cursor: None })?;
    } else {
        table(&accounts)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the accounts of all pages.
async fn all(client: &Client) -> anyhow::Result<Vec<Record>> {
    let mut accounts = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = client.run(&ListAccounts { cursor, ..ListAccounts::default() }).await?.value;
        accounts.extend(page.accounts);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(accounts);
        }
    }
}

/// Finds the id of an account that is given by id or by name.
pub(super) async fn find(client: &Client, account: &str) -> anyhow::Result<AccountId> {
    if let Ok(id) = account.parse() {
        return Ok(id);
    }
    let found = all(client).await?.into_iter().find(|record| record.name == account);
    let found = found.with_context(|| format!("no account `{account}`; `skep account list` lists them"))?;
    Ok(found.id)
}

fn show(account: &Answered<Record>, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        output::json(&account.text)?;
    } else {
        table(std::slice::from_ref(&account.value))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(accounts: &[Record]) -> std::io::Result<()> {
    let number = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
    let row = |account: &Record| {
        let from = account.allowed_ips.join(",");
        [
            account.id.to_string(),
            account.name.clone(),
            account.roots.join(":"),
            if from.is_empty() { "everywhere".to_owned() } else { from },
            number(account.max_vms.map(u64::from)),
            number(account.max_memory_mb),
            number(account.max_paused_vms.map(u64::from)),
            number(account.max_disk_mb),
            describe_policy(&account.egress),
            account.git_relay.as_str().to_owned(),
            output::time(Some(account.created_at)),
        ]
    };
    let header = [
        "ID",
        "NAME",
        "ROOTS",
        "FROM",
        "MAX VMS",
        "MAX MIB",
        "MAX PAUSED",
        "MAX DISK MIB",
        "EGRESS",
        "GIT RELAY",
        "CREATED",
    ];
    output::table(header, accounts.iter().map(row))
}

/// Absolute paths: the server does not know the current directory of this process.
fn absolute_paths(given: &[PathBuf]) -> anyhow::Result<Vec<String>> {
    let path = |path: &PathBuf| {
        let absolute = std::path::absolute(path).context("the current directory is gone")?;
        let text = absolute.to_str().map(str::to_owned);
        text.with_context(|| format!("the path {} is not UTF-8", Path::display(path)))
    };
    given.iter().map(path).collect()
}

/// `None` for an option that was not given.
fn non_empty<T>(given: Vec<T>) -> Option<Vec<T>> {
    if given.is_empty() { None } else { Some(given) }
}
