//! The caller, and what operations require of its key.

use std::{marker::PhantomData, ops::Deref, sync::Arc};

use axum::extract::FromRequestParts;
use http::request::Parts;
use skep_api::{ErrorCode, Failure, Scope, VmId};

use crate::{auth::Identity, error::Refusal};

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
    FilesRead = [FilesRead] vm_keys,
    FilesWrite = [FilesWrite] vm_keys,
    MetricsRead = [MetricsRead],
    ServerAdmin = [ServerAdmin],
    SwarmRead = [SwarmRead],
    SwarmWrite = [SwarmWrite],
    SwarmExec = [SwarmExec] vm_keys,
    TicketsRead = [TicketsRead],
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
}

impl Identity {
    /// Requires one more scope.
    ///
    /// # Errors
    /// `scope_missing`.
    pub(crate) fn require_scope(&self, scope: Scope) -> Result<(), Refusal> {
        check_scope(self, scope)
    }

    /// Refuses a session: the caller must send the key itself. Operations that create credentials call this, so that an
    /// attacker who stole a session cannot extend its access beyond the end of the session.
    ///
    /// # Errors
    /// `key_required`.
    pub(crate) fn require_key_itself(&self) -> Result<(), Refusal> {
        if self.session.is_none() {
            return Ok(());
        }
        let message = "a session can neither create nor rotate keys, nor create login links; send the key itself as \
                       `Authorization: Bearer`";
        Err(Refusal::new(ErrorCode::KeyRequired, message))
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
