//! Types that list the refusals of an operation, beside those that all operations share.

use std::collections::BTreeMap;

use skep_api::{ErrorCode, files::WRITE_REFUSALS};
use utoipa::{
    IntoResponses,
    openapi::{RefOr, Response, ResponseBuilder, extensions::ExtensionsBuilder},
};

use crate::error::status_number;

/// The extension that holds the codes of a response until the document is completed.
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
    /// Operations that only need the store.
    StoreRefused = [StoreUnavailable],
    /// Creating a link that opens a session.
    SessionLinkRefused = [KeyRequired, InvalidValue, MalformedBody, BodyTooLarge, NotJson],
    /// Reading samples of the swarm.
    SwarmSamplesRefused = [SwarmUnavailable, ShuttingDown],
    BootRefused = [
        UnknownTemplate, UnknownTicket, NameTaken, TemplateNotReady, QuotaExceeded, ClaimLost, Blocked, NotYet, Superseded, LeaseLost, TicketState,
        IdempotencyInProgress, IdempotencyMismatch, TemplateDamaged, NoCapacity, SwarmUnavailable, BootFailed, ShuttingDown, GuestTimeout,
    ],
    /// Reading a template.
    TemplateRefused = [UnknownTemplate],
    CreateTemplateRefused = [
        UnknownTemplate, NameTaken, TemplateNotReady, QuotaExceeded, IdempotencyInProgress, IdempotencyMismatch,
        TemplateDamaged, SwarmUnavailable, ShuttingDown,
    ],
    DeleteTemplateRefused = [UnknownTemplate, TemplateProtected, TemplateInUse],
    /// Ending all VMs.
    CleanupRefused = [SwarmUnavailable, ShuttingDown, MalformedBody, BodyTooLarge, NotJson],
    /// Operations on one VM that do not use its guest agent.
    VmRefused = [UnknownVm, SwarmUnavailable, ShuttingDown],
    /// Pausing or resuming a VM.
    PauseRefused = [UnknownVm, VmEnded, SwarmUnavailable, ShuttingDown, GuestTimeout],
    ResumeRefused = [
        UnknownVm, VmEnded, SwarmUnavailable, ShuttingDown, GuestTimeout, MalformedBody, BodyTooLarge, NotJson,
    ],
    ChangeVmRefused = [UnknownVm, NameTaken, SwarmUnavailable, ShuttingDown],
    WatchRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, WatchLimit, PathOutsideRoots, PermissionDenied,
        TooManyLinks, SwarmUnavailable, ShuttingDown, GuestTimeout,
    ],
    RestartRefused = [RestartRefused, ShuttingDown, MalformedBody, BodyTooLarge, NotJson],
    /// A command on the server, or in a VM.
    ExecAnywhereRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, ExecFailed, PathOutsideRoots, ExecUnavailable,
        SwarmUnavailable, ShuttingDown, GuestTimeout,
    ],
    /// Deleting a Git credential.
    CredentialRefused = [UnknownCredential],
    /// A command in a VM.
    ExecRefused = [
        UnknownVm, UnknownPath, VmEnded, VmPaused, NotADirectory, ExecFailed, PathOutsideRoots, SwarmUnavailable,
        ShuttingDown, GuestTimeout,
    ],
    /// A command over a WebSocket.
    DuplexRefused = [UpgradeRequired, UnknownVm, VmPaused, SwarmUnavailable, ShuttingDown],
    /// Reconnecting to a running command.
    ExecReconnectRefused = [UnknownVm, UnknownExec, VmEnded, VmPaused, SwarmUnavailable, ShuttingDown, GuestTimeout],
    CreateKeyRefused = [UnknownVm, UnknownAccount, NameTaken, SwarmUnavailable],
    /// Operations on one key.
    KeyRefused = [UnknownKey],
    RotateRefused = [UnknownKey, KeyNotValid],
    CreateAccountRefused = [NameTaken, WorkspaceTaken],
    /// Reading an account, or revoking its keys.
    AccountRefused = [UnknownAccount],
    ChangeAccountRefused = [UnknownAccount, AccountProtected],
    DeleteAccountRefused = [UnknownAccount, AccountInUse, AccountProtected, SwarmUnavailable, ShuttingDown],
    /// Creating one ticket.
    CreateTicketRefused = [
        IdempotencyInProgress, FieldTooLarge, UnknownDependency, IdempotencyMismatch,
    ],
    /// Creating several tickets.
    CreateTicketsRefused = [
        Cycle, IdempotencyInProgress, FieldTooLarge, UnknownDependency, IdempotencyMismatch,
    ],
    /// Claiming any ready ticket.
    ClaimRefused = [IdempotencyInProgress, IdempotencyMismatch],
    /// Reading a ticket.
    TicketRefused = [UnknownTicket],
    TicketLogRefused = [UnknownTicket, UnknownLog],
    ChangeTicketRefused = [
        UnknownTicket, ClaimLost, Blocked, NotYet, Superseded, LeaseLost, TicketState, Cycle, VersionStale,
        FieldTooLarge, UnknownDependency,
    ],
    /// Heartbeats.
    BeatRefused = [UnknownTicket, ClaimLost, Superseded, LeaseLost, TicketState],
    DeleteTicketRefused = [UnknownTicket, TicketState, HasDependents, VersionStale],
    CreateWebhookRefused = [QuotaExceeded],
    /// Operations on one webhook.
    WebhookRefused = [UnknownWebhook],
    /// Sending a test event.
    SendWebhookRefused = [UnknownWebhook, WebhookDisabled, MalformedBody, BodyTooLarge, NotJson],
    RedeliverRefused = [
        UnknownWebhook, UnknownDelivery, WebhookDisabled, MalformedBody, BodyTooLarge, NotJson,
    ],
    /// A list that is served as JSON or as CSV.
    ListFormatRefused = [NotAcceptable],
    WaitlistEntryRefused = [UnknownWaitlistEntry],
    /// A file of the documentation pages.
    DocsFileRefused = [UnknownRoute],
}

/// Refusals of routes that change files but are not endpoints.
pub(crate) struct FilesWriteRefused;

impl IntoResponses for FilesWriteRefused {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        responses_of(&WRITE_REFUSALS.concat())
    }
}

/// A response for each status, with its codes.
pub(super) fn responses_of(codes: &[ErrorCode]) -> BTreeMap<String, RefOr<Response>> {
    let mut by_status = BTreeMap::<String, Vec<ErrorCode>>::new();
    for code in codes {
        by_status.entry(status_number(code.kind()).to_string()).or_default().push(*code);
    }
    by_status.into_iter().map(|(status, codes)| (status, response_with_codes(&codes).into())).collect()
}

/// A response that only holds its codes.
pub(super) fn response_with_codes(codes: &[ErrorCode]) -> Response {
    let names: Vec<&str> = codes.iter().map(|code| code.as_str()).collect();
    ResponseBuilder::new().extensions(Some(ExtensionsBuilder::new().add(CODES, names).build())).build()
}

/// Removes the codes from a response.
pub(super) fn take_codes(response: &mut Response) -> Vec<ErrorCode> {
    let Some(mut extensions) = response.extensions.take() else { return Vec::new() };
    let codes = extensions.remove(CODES);
    if !extensions.is_empty() {
        response.extensions = Some(extensions);
    }
    codes.and_then(|codes| serde_json::from_value(codes).ok()).unwrap_or_default()
}

/// An example message of a code. Tests and clients rely on the exact text of some.
pub(super) fn example_message(code: ErrorCode) -> &'static str {
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
