//! `/api/git/credentials`: the tokens with which git authenticates to hosts. They are write-only: no route returns one.

use skep_api::{
    ErrorCode, Failure,
    git::{
        Credential, CredentialPage, CredentialRemoved, KeptCredential, ListGitCredentials,
        RemoveGitCredential, SetGitCredential,
    },
};
use skep_store::GitCredential;

use super::{
    Routes,
    handle::{Handle, Request, endpoints},
    page,
};
use crate::{error::Refusal, vault::Vault};

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

pub(crate) fn routes(vault: &Vault) -> Routes {
    endpoints![vault; ListGitCredentials, SetGitCredential, RemoveGitCredential]
}

impl Handle<Vault> for ListGitCredentials {
    async fn handle(self, vault: Vault, request: Request<()>) -> Result<CredentialPage, Refusal> {
        let (limit, after) = page::check::<String>(self.limit, self.cursor.as_deref())?;
        let after = after.map(check_host).transpose()?;
        let mut kept = vault.list(request.caller.account.id).await?;
        kept.retain(|one| after.as_ref().is_none_or(|after| one.host > *after));
        let more = kept.len() > limit as usize;
        kept.truncate(limit as usize);
        let credentials: Vec<KeptCredential> = kept.into_iter().map(to_api).collect();
        let next_cursor = credentials.last().filter(|_| more).map(|last| last.host.clone());
        Ok(CredentialPage { credentials, next_cursor })
    }
}

impl Handle<Vault> for SetGitCredential {
    async fn handle(self, vault: Vault, request: Request<()>) -> Result<KeptCredential, Refusal> {
        let account = request.caller.account.id;
        let host = check_host(self.host)?;
        let token = if host.starts_with(SSH_PREFIX) {
            check_private_key(&self.token)?
        } else {
            check_line("token", self.token)?
        };
        let username = check_line("username", self.username.unwrap_or_else(|| USERNAME.to_owned()))?;
        let known = vault.list(account).await?;
        if known.len() >= MAX_HOSTS && !known.iter().any(|one| one.host == host) {
            return Err(
                invalid(format!("`host` would be one more than {MAX_HOSTS}; remove another one")).into()
            );
        }
        let credential = Credential { username, token };
        Ok(to_api(vault.set(account, host, &credential, request.info.arrival.wall).await?))
    }
}

impl Handle<Vault> for RemoveGitCredential {
    async fn handle(self, vault: Vault, request: Request<()>) -> Result<CredentialRemoved, Refusal> {
        let host = check_host(self.host)?;
        if vault.remove(request.caller.account.id, &host).await? {
            return Ok(CredentialRemoved { host, removed: true });
        }
        let message =
            format!("no credential for `{host}`; list the account's credentials to see their hosts");
        Err(Failure::new(ErrorCode::UnknownCredential, message).into())
    }
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
fn check_private_key(text: &str) -> Result<String, Failure> {
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
