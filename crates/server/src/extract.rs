//! Extractors of handlers. The order of a handler's arguments is the order of the checks.

use std::{collections::BTreeMap, marker::PhantomData, ops::Deref, sync::Arc};

use axum::extract::{FromRequestParts, Path, rejection::PathRejection};
use http::request::Parts;
use serde::{Deserialize, de::DeserializeOwned};
use skep_api::{ErrorCode, Failure, Scope, VmId, VmRef};

use crate::{
    audit_context::AuditContext,
    auth::Identity,
    body::field_failure,
    error::Refusal,
    percent::percent_decoded,
    request::{Arrival, RequestId},
};

/// What an operation requires of a key.
pub(crate) trait Requirement: Send + Sync + 'static {
    /// The required scopes.
    const SCOPES: &'static [Scope];
    /// Whether a key that is bound to a VM is allowed. Such a key may reach only its VM and that VM's ticket, so an
    /// operation that allows it must check the resource as well.
    const VM_KEYS: bool = false;

    /// Refuses a key that lacks a required scope.
    ///
    /// # Errors
    /// `scope_missing`.
    fn check(identity: &Identity) -> Result<(), Refusal> {
        Self::SCOPES.iter().try_for_each(|scope| check_scope(identity, *scope))
    }
}

macro_rules! requirements {
    ($($(#[$doc:meta])* $name:ident = [$($scope:ident),*] $($vm_keys:ident)?),+ $(,)?) => {
        $($(#[$doc])* #[derive(Debug, Clone, Copy)] pub(crate) struct $name;
        impl Requirement for $name {
            const SCOPES: &'static [Scope] = &[$(Scope::$scope),*];
            $(const VM_KEYS: bool = requirements!($vm_keys);)?
        })+
    };
    (vm_keys) => { true };
}

requirements! {
    /// Any key that is bound to no VM.
    AnyKey = [],
    /// Any key, also one that is bound to a VM.
    AnyKeyOrVmKey = [] vm_keys,
    /// `admin`.
    Admin = [Admin],
    /// `files:read`.
    FilesRead = [FilesRead] vm_keys,
    /// `files:write`.
    FilesWrite = [FilesWrite] vm_keys,
    /// `git:write`, for resources of the whole account.
    GitCredentials = [GitWrite],
    /// `metrics:read`.
    MetricsRead = [MetricsRead],
    /// `server:admin`.
    ServerAdmin = [ServerAdmin],
    /// `swarm:read`.
    SwarmRead = [SwarmRead],
    /// `swarm:write`.
    SwarmWrite = [SwarmWrite],
    /// `swarm:exec`.
    SwarmExec = [SwarmExec] vm_keys,
    /// `tickets:read`.
    TicketsRead = [TicketsRead],
    /// `tickets:write`.
    TicketsWrite = [TicketsWrite],
    /// `tickets:read`, for one ticket.
    TicketRead = [TicketsRead] vm_keys,
    /// `tickets:write`, for a heartbeat or the end of one ticket.
    TicketWrite = [TicketsWrite] vm_keys,
}

/// `server:admin` for the server, or `swarm:exec` for a VM. The handler checks the exact scope once it has read from
/// the body which of the two the command is for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExecAnywhere;

impl Requirement for ExecAnywhere {
    const SCOPES: &'static [Scope] = &[Scope::SwarmExec];
    const VM_KEYS: bool = true;

    fn check(identity: &Identity) -> Result<(), Refusal> {
        check_scope(identity, Scope::ServerAdmin).or_else(|_| check_scope(identity, Scope::SwarmExec))
    }
}

/// Any scope for reading events. The handler checks the exact scopes once it has read the requested kinds from the
/// query.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventsAny;

impl Requirement for EventsAny {
    const SCOPES: &'static [Scope] = &[Scope::TicketsRead];

    fn check(identity: &Identity) -> Result<(), Refusal> {
        let instead = [Scope::SwarmRead, Scope::Admin];
        if instead.iter().any(|scope| identity.key.scopes.contains(scope)) {
            return Ok(());
        }
        check_scope(identity, Scope::TicketsRead)
    }
}

/// The caller, whose key is proven to meet the requirement.
#[derive(Debug)]
pub(crate) struct Caller<D> {
    identity: Arc<Identity>,
    requirement: PhantomData<D>,
}

impl<D> Deref for Caller<D> {
    type Target = Identity;

    fn deref(&self) -> &Identity {
        &self.identity
    }
}

impl<D> Caller<D> {
    /// The caller, for a task that outlives the request.
    pub(crate) fn identity(&self) -> Arc<Identity> {
        Arc::clone(&self.identity)
    }

    /// Requires one more scope.
    ///
    /// # Errors
    /// `scope_missing`.
    pub(crate) fn require_scope(&self, scope: Scope) -> Result<(), Refusal> {
        check_scope(&self.identity, scope)
    }
}

pub(crate) fn check_scope(identity: &Identity, scope: Scope) -> Result<(), Refusal> {
    if identity.key.scopes.contains(&scope) {
        return Ok(());
    }
    if let Some(vm) = identity.key.vm {
        // A key of a VM can never have this scope, so `scope_missing` would mislead.
        return Err(vm_key_limited(vm).into());
    }
    let message = format!("this key lacks the scope `{scope}`; use a key that has it");
    Err(Refusal::new(ErrorCode::ScopeMissing, message))
}

impl<D: Requirement, S: Send + Sync> FromRequestParts<S> for Caller<D> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let Some(identity) = parts.extensions.get::<Arc<Identity>>() else {
            return Err(Refusal::internal("a route that requires scopes is not among the guarded routes"));
        };
        if let (Some(vm), false) = (identity.key.vm, D::VM_KEYS) {
            return Err(vm_key_limited(vm).into());
        }
        D::check(identity)?;
        Ok(Self { identity: Arc::clone(identity), requirement: PhantomData })
    }
}

/// The refusal for a key that is bound to a VM and used for anything else than that VM.
pub(crate) fn vm_key_limited(vm: VmId) -> Failure {
    let message = format!(
        "this key is bound to {vm}: it reaches files, git and commands of that VM, named by `vm`, and that VM's ticket; \
         use another key"
    );
    Failure::new(ErrorCode::VmKeyLimited, message)
}

/// Query parameters. An unknown parameter is refused by name.
#[derive(Debug)]
pub(crate) struct Query<T>(pub T);

/// The query of an operation without parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParameters {}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        Ok(Self(read_query(parts.uri.query().unwrap_or_default())?))
    }
}

/// Query parameters with a key in their name, after a prefix.
pub(crate) trait KeyPrefix {
    /// The prefix, such as `metadata.`.
    const PREFIX: &'static str;
}

/// Query parameters, and a map of those whose name is a prefix and a key.
#[derive(Debug)]
pub(crate) struct KeyedQuery<T>(pub T, pub BTreeMap<String, String>);

impl<T: DeserializeOwned + KeyPrefix, S: Send + Sync> FromRequestParts<S> for KeyedQuery<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let (rest, keyed) = split_keyed(parts.uri.query().unwrap_or_default(), T::PREFIX)?;
        Ok(Self(read_query(&rest)?, keyed))
    }
}

/// Splits a query into the parameters without the prefix and a map of those with it.
fn split_keyed(query: &str, prefix: &str) -> Result<(String, BTreeMap<String, String>), Failure> {
    let mut keyed = BTreeMap::new();
    let mut rest = Vec::new();
    for part in query.split('&') {
        let found = form_urlencoded::parse(part.as_bytes())
            .next()
            .and_then(|(name, value)| Some((name.strip_prefix(prefix)?.to_owned(), value.into_owned())));
        match found {
            Some(_) if percent_decoded(part).is_err() => return Err(query_not_utf8()),
            Some((key, value)) => {
                if keyed.insert(key.clone(), value).is_some() {
                    let message = format!("`{prefix}{key}` is given twice; give it once");
                    return Err(Failure::new(ErrorCode::InvalidValue, message));
                }
            }
            None => rest.push(part),
        }
    }
    Ok((rest.join("&"), keyed))
}

fn query_not_utf8() -> Failure {
    let message = "the query is not UTF-8 once its %xx are decoded; a path that is not is written with \
                   `path_encoding=percent`";
    Failure::new(ErrorCode::MalformedRequest, message)
}

/// The names and values of a query.
///
/// # Errors
/// `malformed_request` if they are not UTF-8: the parser would replace invalid bytes by U+FFFD, and a path would name
/// another file.
pub(crate) fn query_pairs(query: &str) -> Result<form_urlencoded::Parse<'_>, Failure> {
    if percent_decoded(query).is_err() {
        return Err(query_not_utf8());
    }
    Ok(form_urlencoded::parse(query.as_bytes()))
}

/// Deserializes the parameters of a query.
///
/// # Errors
/// `malformed_request` as [`query_pairs`]; `unknown_field`, `missing_parameter` or `invalid_value`, each naming the
/// parameter.
pub(crate) fn read_query<T: DeserializeOwned>(query: &str) -> Result<T, Failure> {
    let pairs = serde_urlencoded::Deserializer::new(query_pairs(query)?);
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let path = error.path().to_string();
        let message = error.into_inner().to_string();
        let mut failure = field_failure(&path, &message);
        failure.message = failure.message.replacen("unknown field", "unknown query parameter", 1);
        failure
    })
}

/// The OpenAPI description of a VM reference in a path or a query.
pub(crate) const VM_REFERENCE: &str =
    "The VM: its process id, id, unique beginning of the id (`vm_01jv`), name, host name or address";

/// The VM reference in a path. Its existence is checked last.
#[derive(Debug)]
pub(crate) struct VmPath(Segment);

impl VmPath {
    /// The VM that it may be.
    ///
    /// # Errors
    /// `unknown_vm` where no VM can have such a name.
    pub(crate) fn vm(&self) -> Result<VmRef, Failure> {
        parse_vm(&self.0.0)
    }
}

/// Parses a VM reference.
///
/// # Errors
/// `unknown_vm` where no VM can have such a name.
pub(crate) fn parse_vm(text: &str) -> Result<VmRef, Failure> {
    VmRef::parse(text).ok_or_else(|| Failure::unknown_vm(text))
}

impl<S: Send + Sync> FromRequestParts<S> for VmPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        Segment::from_request_parts(parts, state).await.map(Self)
    }
}

/// The VM and the command in a path.
#[derive(Debug)]
pub(crate) struct ExecPath {
    vm: String,
    exec_id: String,
}

impl ExecPath {
    /// The VM that it may be.
    ///
    /// # Errors
    /// `unknown_vm` where no VM can have such a name.
    pub(crate) fn vm(&self) -> Result<VmRef, Failure> {
        parse_vm(&self.vm)
    }

    /// The command's id. Its characters are checked, because it becomes part of a request to the guest.
    ///
    /// # Errors
    /// `unknown_exec` where no command can have such an id.
    pub(crate) fn exec_id(&self) -> Result<&str, Failure> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if (1..=64).contains(&self.exec_id.len()) && self.exec_id.bytes().all(fits) {
            return Ok(&self.exec_id);
        }
        let message = format!(
            "there is no command {:?}; an id is what the header `Skep-Exec-Id` of a stream named",
            self.exec_id
        );
        Err(Failure::new(ErrorCode::UnknownExec, message))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ExecPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let (vm, exec_id) = segments(parts).await?;
        Ok(Self { vm, exec_id })
    }
}

/// The webhook and the delivery in a path.
#[derive(Debug)]
pub(crate) struct DeliveryPath {
    /// The webhook's id, not yet parsed.
    pub(crate) webhook: String,
    /// The delivery's.
    pub(crate) delivery: String,
}

impl<S: Send + Sync> FromRequestParts<S> for DeliveryPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let (webhook, delivery) = segments(parts).await?;
        Ok(Self { webhook, delivery })
    }
}

/// The only variable segment of a path.
#[derive(Debug)]
pub(crate) struct Segment(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        segments(parts).await.map(Self)
    }
}

/// The variable segments of a path; `T` determines their number.
async fn segments<T: DeserializeOwned + Send>(parts: &mut Parts) -> Result<T, Refusal> {
    match Path::<T>::from_request_parts(parts, &()).await {
        Ok(Path(segments)) => Ok(segments),
        Err(PathRejection::FailedToDeserializePathParams(_)) => Err(not_utf8().into()),
        Err(other) => Err(Refusal::internal(other.to_string())),
    }
}

/// The refusal of a path whose decoded bytes are not UTF-8.
pub(crate) fn not_utf8() -> Failure {
    Failure::new(
        ErrorCode::MalformedRequest,
        "the path is not UTF-8 once its %xx are decoded; encode it as UTF-8",
    )
}

/// The arrival, the id and the audit context of a request.
#[derive(Debug, Clone)]
pub(crate) struct RequestInfo {
    pub arrival: Arrival,
    pub id: RequestId,
    pub audit: AuditContext,
}

impl<S: Send + Sync> FromRequestParts<S> for RequestInfo {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let arrival = parts.extensions.get::<Arrival>().copied();
        let trail = AuditContext::from_extensions(&parts.extensions).cloned().unwrap_or_default();
        match (arrival, parts.extensions.get::<RequestId>()) {
            (Some(arrival), Some(id)) => Ok(Self { arrival, id: id.clone(), audit: trail }),
            _ => Err(Refusal::internal("a request bypassed the layer that observes it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Page {
        limit: Option<u32>,
    }

    #[test]
    fn parameters_with_a_key_in_their_name_are_kept_apart() {
        let (rest, keyed) = split_keyed("a=1&m.x=%C3%A9&m.=&m%2Ey+z=&b", "m.").unwrap();
        assert_eq!(rest, "a=1&b");
        let keyed: Vec<_> = keyed.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(keyed, [("", ""), ("x", "é"), ("y z", "")]);
        assert_eq!(split_keyed("m.x=1&m.x=1", "m.").unwrap_err().code, ErrorCode::InvalidValue);
        assert_eq!(split_keyed("m.x=%ff", "m.").unwrap_err().code, ErrorCode::MalformedRequest);
        assert_eq!(split_keyed("", "m.").unwrap(), (String::new(), BTreeMap::new()));
    }

    #[test]
    fn a_query_is_refused_by_name() {
        assert_eq!(read_query::<Page>("limit=7").unwrap().limit, Some(7));
        for (query, code, name) in [
            ("limti=7", ErrorCode::UnknownField, "query parameter `limti`"),
            ("limit=x", ErrorCode::InvalidValue, "`limit`"),
            ("limit=", ErrorCode::InvalidValue, "`limit`"),
            ("limit=%ff", ErrorCode::MalformedRequest, "UTF-8"),
            ("limit=1&limit=2", ErrorCode::InvalidValue, "`limit`"),
        ] {
            let failure = read_query::<Page>(query).unwrap_err();
            assert_eq!(failure.code, code, "{query}: {failure}");
            assert!(failure.message.contains(name), "{query}: {failure}");
        }
        assert!(read_query::<NoParameters>("").is_ok());
        assert!(read_query::<NoParameters>("a").is_err());
    }
}
