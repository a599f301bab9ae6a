//! Which refusals an operation can give beside those that many can, as types that its description names.

use std::collections::BTreeMap;

use skep_api::ErrorCode;
use utoipa::{
    IntoResponses,
    openapi::{RefOr, Response, ResponseBuilder, extensions::ExtensionsBuilder},
};

use crate::error::status_number;

/// Where a response keeps its codes until the whole document is put together.
const CODES: &str = "x-codes";

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = [$($code:ident),+ $(,)?]),+ $(,)?) => { $(
        $(#[$doc])*
        pub(crate) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                responses_of(&[$(ErrorCode::$code),+])
            }
        }
    )+ };
}

refusals! {
    /// Of health: all that it needs is the store.
    StoreAway = [StoreUnavailable],
    /// Of an operation that takes no body, and refuses one.
    BodyRefused = [MalformedBody, BodyTooLarge, NotJson],
    /// Of a boot.
    BootRefused = [
        UnknownTemplate, UnknownTicket, NameTaken, QuotaExceeded, ClaimLost, Blocked, NotYet, Superseded, LeaseLost, TicketState,
        IdempotencyInProgress, IdempotencyMismatch, TemplateDamaged, NoCapacity, SwarmUnavailable, BootFailed, ShuttingDown, GuestTimeout,
    ],
    /// Of the end of all VMs.
    CleanupRefused = [SwarmUnavailable, ShuttingDown, MalformedBody, BodyTooLarge, NotJson],
    /// Of what is done with one VM from outside.
    VmRefused = [UnknownVm, SwarmUnavailable, ShuttingDown],
    /// Of a change of a VM.
    ChangeVmRefused = [UnknownVm, NameTaken, SwarmUnavailable, ShuttingDown],
    /// Of what is read of files, here or in a VM.
    FilesRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, NotAFile, PathOutsideRoots, PermissionDenied,
        BodyTooLarge, NotText, TooManyLinks, InvalidPattern, SwarmUnavailable, ShuttingDown, GuestTimeout,
    ],
    /// Of reading a file, in one of two forms.
    ReadRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, NotAFile, PathOutsideRoots, PermissionDenied,
        BodyTooLarge, NotText, TooManyLinks, NotAcceptable, RangeNotSatisfiable, SwarmUnavailable, ShuttingDown,
        GuestTimeout,
    ],
    /// Of watching a folder.
    WatchRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, WatchLimit, PathOutsideRoots, PermissionDenied,
        TooManyLinks, SwarmUnavailable, ShuttingDown, GuestTimeout,
    ],
    /// Of what is done to files, here or in a VM.
    FilesWriteRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, NotAFile, NotEmpty, AlreadyExists, PathOutsideRoots,
        PermissionDenied, PreconditionFailed, NotText, TooManyLinks, TooDeep, DiskFull, FileBusy, BodyTooLarge,
        SwarmUnavailable, ShuttingDown, GuestTimeout,
    ],
    /// Of a restart.
    RestartRefused = [RestartRefused, ShuttingDown, MalformedBody, BodyTooLarge, NotJson],
    /// Of a command on the server, or in a VM.
    ExecAnywhereRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, ExecFailed, PathOutsideRoots, ExecUnavailable,
        SwarmUnavailable, ShuttingDown, GuestTimeout,
    ],
    /// Of what is read of a repository.
    GitRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, PathOutsideRoots, PermissionDenied, TooManyLinks,
        UnknownRepository, UnknownRevision, HostileRepository, RepositoryLocked, GitRefused, GitTimeout, SwarmUnavailable,
        ShuttingDown, GuestTimeout, BareRepository, BodyTooLarge,
    ],
    /// Of what is done to a repository.
    GitWriteRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, PathOutsideRoots, PermissionDenied, TooManyLinks,
        UnknownRepository, UnknownRevision, HostileRepository, RepositoryLocked, GitRefused, GitTimeout, SwarmUnavailable,
        ShuttingDown, GuestTimeout, BareRepository, AlreadyExists, NothingToCommit, MergeConflict, BodyTooLarge,
    ],
    /// Of what needs another repository.
    GitNetworkRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, PathOutsideRoots, PermissionDenied, TooManyLinks,
        UnknownRepository, UnknownRevision, HostileRepository, RepositoryLocked, GitRefused, GitTimeout, SwarmUnavailable,
        ShuttingDown, GuestTimeout, BareRepository, AlreadyExists, MergeConflict, UnknownRemote, RemoteForbidden, RemoteFailed, PushRejected,
    ],
    /// Of a credential that is forgotten.
    CredentialRefused = [UnknownCredential],
    /// Of a command in a VM.
    ExecRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, ExecFailed, PathOutsideRoots, SwarmUnavailable,
        ShuttingDown, GuestTimeout,
    ],
    /// Of a command over a WebSocket.
    DuplexRefused = [UpgradeRequired, UnknownVm, SwarmUnavailable, ShuttingDown],
    /// Of coming back to a command.
    ExecAgainRefused = [UnknownVm, UnknownExec, VmEnded, VmPaused, SwarmUnavailable, ShuttingDown, GuestTimeout],
    /// Of a key that shall be made.
    CreateKeyRefused = [UnknownVm, UnknownAccount, NameTaken, SwarmUnavailable],
    /// Of what is done with one key.
    KeyRefused = [UnknownKey],
    /// Of a rotation.
    RotateRefused = [UnknownKey, KeyNotValid],
    /// Of an account that shall be made.
    CreateAccountRefused = [NameTaken, WorkspaceTaken],
    /// Of an account that is read, or whose keys are revoked.
    AccountRefused = [UnknownAccount],
    /// Of an account that is changed.
    ChangeAccountRefused = [UnknownAccount, AccountProtected],
    /// Of an account that is deleted.
    DeleteAccountRefused = [UnknownAccount, AccountInUse, AccountProtected, SwarmUnavailable, ShuttingDown],
    /// Of a ticket that shall be made.
    CreateTicketRefused = [
        IdempotencyInProgress, FieldTooLarge, UnknownDependency, IdempotencyMismatch,
    ],
    /// Of tickets that shall be made.
    CreateTicketsRefused = [
        Cycle, IdempotencyInProgress, FieldTooLarge, UnknownDependency, IdempotencyMismatch,
    ],
    /// Of a claim of whatever is ready.
    ClaimRefused = [IdempotencyInProgress, IdempotencyMismatch],
    /// Of a ticket that is read.
    TicketRefused = [UnknownTicket],
    /// Of a ticket's log that is read.
    TicketLogRefused = [UnknownTicket, UnknownLog],
    /// Of a ticket that is changed.
    ChangeTicketRefused = [
        UnknownTicket, ClaimLost, Blocked, NotYet, Superseded, LeaseLost, TicketState, Cycle, VersionStale,
        FieldTooLarge, UnknownDependency,
    ],
    /// Of a beat.
    BeatRefused = [UnknownTicket, ClaimLost, Superseded, LeaseLost, TicketState],
    /// Of a ticket that is deleted.
    DeleteTicketRefused = [UnknownTicket, TicketState, HasDependents, VersionStale],
    /// Of a webhook that shall be made.
    CreateWebhookRefused = [QuotaExceeded],
    /// Of what is done with one webhook.
    WebhookRefused = [UnknownWebhook],
    /// Of what shall be sent.
    SendWebhookRefused = [UnknownWebhook, WebhookDisabled, MalformedBody, BodyTooLarge, NotJson],
    /// Of a delivery that shall be tried again.
    RedeliverRefused = [
        UnknownWebhook, UnknownDelivery, WebhookDisabled, MalformedBody, BodyTooLarge, NotJson,
    ],
    /// Of a list that has two forms.
    FormRefused = [NotAcceptable],
    /// Of an entry of the waitlist.
    WaitlistEntryRefused = [UnknownWaitlistEntry],
    /// Of a file of the documentation.
    DocsFileRefused = [UnknownRoute],
}

fn responses_of(codes: &[ErrorCode]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status = BTreeMap::<String, Vec<ErrorCode>>::new();
    for code in codes {
        by_status.entry(status_number(code.kind()).to_string()).or_default().push(*code);
    }
    by_status.into_iter().map(|(status, codes)| (status, marked(&codes).into())).collect()
}

/// A response that is nothing yet but its codes.
pub(super) fn marked(codes: &[ErrorCode]) -> Response {
    let words: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
    ResponseBuilder::new().extensions(Some(ExtensionsBuilder::new().add(CODES, words).build())).build()
}

/// Takes the codes out of a response again.
pub(super) fn take_codes(response: &mut Response) -> Vec<ErrorCode> {
    let Some(mut extensions) = response.extensions.take() else { return Vec::new() };
    let words = extensions.remove(CODES);
    if !extensions.is_empty() {
        response.extensions = Some(extensions);
    }
    words.and_then(|words| serde_json::from_value(words).ok()).unwrap_or_default()
}

/// What a caller may read with a code. The spec and the contract fix some of them to the letter.
pub(super) fn message(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::MissingToken => "Missing token",
        ErrorCode::InvalidToken => "Invalid token",
        ErrorCode::TokenExpired => "Token expired",
        ErrorCode::Internal => "internal error",
        ErrorCode::HttpsRequired => crate::error::HTTPS_REQUIRED,
        ErrorCode::UnknownRoute => crate::error::UNKNOWN_ROUTE,
        ErrorCode::UnknownField => "unknown query parameter `limti`, expected `limit` or `cursor`",
        ErrorCode::InvalidValue => "`limit` is 0; it must be a whole number from 1 to 1000",
        ErrorCode::MissingParameter => "missing field `name`",
        ErrorCode::MalformedBody => {
            "the body is not a JSON object: EOF while parsing an object at line 1 column 1"
        }
        ErrorCode::ScopeMissing => "this key lacks the scope `admin`; use a key that has it",
        ErrorCode::BodyTooLarge => "the body is larger than 1 MiB; send less",
        ErrorCode::NotJson => "`Content-Type` is `text/plain`; send `application/json`",
        ErrorCode::UnknownVm => "no VM `4242` in this account; GET /api/swarm/status lists its VMs",
        ErrorCode::StoreUnavailable => "the store is away; try again later",
        other => other.meaning(),
    }
}
