//! `/api/git/credentials`: the tokens with which git authenticates to hosts. They are write-only: no route returns one.

use axum::extract::State;
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure,
    git::{Credential, CredentialPage, CredentialRemoved, KeptCredential},
};
use skep_store::GitCredential;
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use crate::{
    body::Body,
    extract::{Admin, Caller, GitCredentials, NoParameters, Query, RequestInfo},
    json::Json,
    openapi::refusals::CredentialRefused,
    routes::{Answer, Created, Routes, created},
    vault::Vault,
};

/// The default user name, which hosts with token authentication accept.
const USERNAME: &str = "x-access-token";
/// The prefix of a host whose secret is a private key for ssh.
const SSH_PREFIX: &str = "ssh://";
/// The beginning of a private key in any format (RFC 7468).
const PRIVATE_KEY_START: &str = "-----BEGIN ";
/// The longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 8 << 10;
/// The most hosts of one account.
const MAX_HOSTS: usize = 1_000;
/// Hosts on a page without `limit`, and at most.
const DEFAULT_PAGE: u32 = 100;
const MAX_PAGE: u32 = 1_000;

pub(crate) fn routes(vault: Vault) -> Routes {
    vec![
        routes!(list).with_state(vault.clone()),
        routes!(set).with_state(vault.clone()),
        routes!(remove).with_state(vault),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListQuery {
    /// Hosts on the page, 1 to 1,000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// List credentials
///
/// Returns the hosts that have a token, but never a token.
#[utoipa::path(
    get, path = "/api/git/credentials", tag = "git", operation_id = "list_git_credentials", params(ListQuery),
    security(("bearer" = ["git:write"])),
    responses((status = 200, description = "A page of the hosts", body = CredentialPage))
)]
async fn list(
    State(vault): State<Vault>,
    caller: Caller<GitCredentials>,
    Query(query): Query<ListQuery>,
) -> Answer<CredentialPage> {
    let limit = query.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(
            invalid(format!("`limit` is {limit}; it must be a whole number from 1 to {MAX_PAGE}")).into()
        );
    }
    let after = query.cursor.map(check_host).transpose()?;
    let mut kept = vault.list(caller.account.id).await?;
    kept.retain(|one| after.as_ref().is_none_or(|after| one.host > *after));
    let more = kept.len() > limit as usize;
    kept.truncate(limit as usize);
    let credentials: Vec<KeptCredential> = kept.into_iter().map(to_api).collect();
    let next_cursor = credentials.last().filter(|_| more).map(|last| last.host.clone());
    Ok(Json(CredentialPage { credentials, next_cursor }))
}

/// A token for a host.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CredentialBody {
    /// The host, with the port if URLs contain one, and prefixed with `ssh://` for a private key.
    #[schema(example = "git.example.com")]
    host: String,
    /// The token; for ssh a private key without a passphrase, as `ssh-keygen` writes it. It is never returned.
    #[schema(example = "a-token-of-that-host")]
    token: String,
    /// The user name for git; default `x-access-token`.
    username: Option<String>,
}

/// Store a credential
///
/// Git on the server uses it for this host, for all keys of the account: a token over https only, and the private key
/// of an `ssh://` host over ssh only. It replaces the previous one of the host, is encrypted at rest, and never enters
/// a VM.
#[utoipa::path(
    post, path = "/api/git/credentials", tag = "git", operation_id = "set_git_credential",
    security(("bearer" = ["admin"])),
    request_body(content = CredentialBody, example = json!({"host": "git.example.com", "token": "a-token-of-that-host"})),
    responses((status = 201, description = "It was stored", body = KeptCredential))
)]
async fn set(
    State(vault): State<Vault>,
    caller: Caller<Admin>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<CredentialBody>,
) -> Created<KeptCredential> {
    let host = check_host(body.host)?;
    let token = if host.starts_with(SSH_PREFIX) {
        check_private_key(body.token)?
    } else {
        check_line("token", body.token)?
    };
    let username = check_line("username", body.username.unwrap_or_else(|| USERNAME.to_owned()))?;
    let known = vault.list(caller.account.id).await?;
    if known.len() >= MAX_HOSTS && !known.iter().any(|one| one.host == host) {
        return Err(invalid(format!("`host` would be one more than {MAX_HOSTS}; remove another one")).into());
    }
    let credential = Credential { username, token };
    let kept = vault.set(caller.account.id, host, &credential, call.arrival.wall).await?;
    created(to_api(kept))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RemoveQuery {
    /// The host, as it was stored.
    #[param(example = "git.example.com")]
    host: String,
}

/// Delete a credential
///
/// Git no longer authenticates to this host.
#[utoipa::path(
    delete, path = "/api/git/credentials", tag = "git", operation_id = "remove_git_credential", params(RemoveQuery),
    security(("bearer" = ["admin"])),
    responses((status = 200, description = "It was deleted", body = CredentialRemoved), CredentialRefused)
)]
async fn remove(
    State(vault): State<Vault>,
    caller: Caller<Admin>,
    Query(query): Query<RemoveQuery>,
) -> Answer<CredentialRemoved> {
    let host = check_host(query.host)?;
    if vault.remove(caller.account.id, &host).await? {
        return Ok(Json(CredentialRemoved { host, removed: true }));
    }
    let message = format!("no credential for `{host}`; list the account's credentials to see their hosts");
    Err(Failure::new(ErrorCode::UnknownCredential, message).into())
}

fn to_api(kept: GitCredential) -> KeptCredential {
    KeptCredential { host: kept.host, username: kept.username, created_at: kept.created_at }
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidValue, message)
}

/// Checks a host: a name with an optional port, prefixed with `ssh://` for a private key.
fn check_host(text: String) -> Result<String, Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    let place = text.strip_prefix(SSH_PREFIX).unwrap_or(&text);
    let (name, port) = place.split_once(':').map_or((place, None), |(name, port)| (name, Some(port)));
    let named = (1..254).contains(&name.len()) && !name.starts_with('-') && name.bytes().all(fits);
    if named && port.is_none_or(|port| port.parse::<u16>().is_ok()) {
        return Ok(text.to_ascii_lowercase());
    }
    let shown: String = text.chars().take(80).collect();
    Err(invalid(format!(
        "`host` is {shown:?}; give a name such as git.example.com, with `:PORT` where URLs name one, and `ssh://` before it for a private key"
    )))
}

/// Checks a private key, and ends its last line, as ssh requires.
fn check_private_key(text: String) -> Result<String, Failure> {
    let fits = |character: char| character == '\n' || !character.is_control();
    let text = text.replace("\r\n", "\n");
    if !text.starts_with(PRIVATE_KEY_START) || text.len() > MAX_TOKEN_BYTES || !text.chars().all(fits) {
        return Err(invalid(format!(
            "`token` must be a private key for a host behind `{SSH_PREFIX}`: text that begins with `{PRIVATE_KEY_START}`, of at most \
             {MAX_TOKEN_BYTES} bytes"
        )));
    }
    Ok(format!("{}\n", text.trim_end()))
}

/// Checks that a value fits into one line of git's credential protocol. It may be a secret, so no message repeats it.
fn check_line(field: &str, text: String) -> Result<String, Failure> {
    if text.is_empty() || text.len() > MAX_TOKEN_BYTES || text.chars().any(char::is_control) {
        return Err(invalid(format!("`{field}` must be one line of 1 to {MAX_TOKEN_BYTES} bytes")));
    }
    Ok(text)
}
