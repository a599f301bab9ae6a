//! Groups of error codes, of which routes compose the lists of their refusals.

use crate::ErrorCode::{self, *};

/// Refusals of operations that need the swarm.
pub const SWARM: &[ErrorCode] = &[SwarmUnavailable, ShuttingDown];

/// Refusals of operations that run in a workspace or in a VM, of which an idle timeout may have paused one.
pub const PLACE: &[ErrorCode] = &[
    UnknownVm,
    VmEnded,
    VmPaused,
    QuotaExceeded,
    TemplateDamaged,
    TemplateNotReady,
    NoCapacity,
    SwarmUnavailable,
    ShuttingDown,
    GuestTimeout,
];

/// Refusals of operations that resolve a path below the roots.
pub const PATH: &[ErrorCode] =
    &[UnknownPath, NotADirectory, PathOutsideRoots, PermissionDenied, TooManyLinks];

/// Refusals of operations on a repository.
pub const REPOSITORY: &[ErrorCode] = &[
    UnknownRepository,
    UnknownRevision,
    HostileRepository,
    RepositoryLocked,
    GitRefused,
    GitTimeout,
    BareRepository,
];
