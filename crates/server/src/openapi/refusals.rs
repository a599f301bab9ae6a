//! Types that list the refusals of an operation, beside those that all operations share.

use std::collections::BTreeMap;

use skep_api::{
    ErrorCode::{self, *},
    files::WRITE_REFUSALS,
    refusals::{PATH, PLACE, SWARM},
};
use utoipa::{
    IntoResponses,
    openapi::{RefOr, Response, ResponseBuilder, extensions::ExtensionsBuilder},
};

use crate::error::status_number;

/// The extension that holds the codes of a response until the document is completed.
const CODES: &str = "x-codes";

/// Refusals of a body that the operation does not need. Where one is required, all operations share them.
pub(super) const OPTIONAL_BODY: &[ErrorCode] = &[MalformedBody, BodyTooLarge, NotJson];
/// Refusals of an `Idempotency-Key`.
const IDEMPOTENCY: &[ErrorCode] = &[IdempotencyInProgress, IdempotencyMismatch];
/// Refusals of a holder whose attempt is over, or of a ticket in another state.
const ATTEMPT: &[ErrorCode] = &[ClaimLost, Superseded, LeaseLost, TicketState];
/// Refusals of claims of one ticket, beside those of an attempt.
const CLAIM: &[ErrorCode] = &[Blocked, NotYet];
/// Refusals of the fields of a ticket.
const TICKET_FIELDS: &[ErrorCode] = &[FieldTooLarge, UnknownDependency];
/// Refusals of starting a command.
const COMMAND: &[ErrorCode] = &[UnknownPath, NotADirectory, ExecFailed, PathOutsideRoots];

macro_rules! refusals {
    ($($(#[$doc:meta])* $name:ident = $groups:expr),+ $(,)?) => { $(
        $(#[$doc])*
        pub(crate) struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                let groups: &[&[ErrorCode]] = $groups;
                responses_of(&groups.concat())
            }
        }
    )+ };
}

refusals! {
    /// Creating a session.
    CreateSessionRefused = &[&[SessionHostRequired]],
    /// Creating a link that opens a session.
    SessionLinkRefused = &[&[KeyRequired, InvalidValue], OPTIONAL_BODY],
    /// Reading samples of the swarm.
    SwarmSamplesRefused = &[SWARM],
    BootRefused = &[
        &[UnknownTemplate, UnknownTicket, NameTaken, TemplateNotReady, QuotaExceeded],
        ATTEMPT, CLAIM, IDEMPOTENCY, &[TemplateDamaged, NoCapacity], SWARM, &[BootFailed, GuestTimeout],
    ],
    ForkRefused = &[
        &[UnknownVm, VmPaused, VmEnded, UnknownTemplate, UnknownTicket, NameTaken, QuotaExceeded], ATTEMPT, CLAIM,
        IDEMPOTENCY, &[TemplateDamaged, TemplateNotReady, NoCapacity], SWARM, &[BootFailed, GuestTimeout],
    ],
    SnapshotRefused = &[
        &[UnknownVm, VmPaused, VmEnded, NameTaken, TemplateNotReady, QuotaExceeded, TemplateDamaged, NoCapacity], SWARM,
        &[GuestTimeout],
    ],
    TemplateRefused = &[&[UnknownTemplate]],
    CreateTemplateRefused = &[
        &[UnknownTemplate, NameTaken, TemplateNotReady, QuotaExceeded], IDEMPOTENCY, &[TemplateDamaged], SWARM,
    ],
    DeleteTemplateRefused = &[&[UnknownTemplate, TemplateProtected, TemplateInUse]],
    /// Ending all VMs.
    CleanupRefused = &[SWARM, OPTIONAL_BODY],
    /// Operations on one VM that do not use its guest agent.
    VmRefused = &[&[UnknownVm, InvalidValue], SWARM],
    /// Reading what only the process of a VM knows.
    VmmRefused = &[&[UnknownVm, InvalidValue, VmPaused], SWARM],
    /// Pausing or resuming a VM.
    PauseRefused = &[&[UnknownVm, VmEnded, QuotaExceeded, TemplateNotReady, NoCapacity], SWARM, &[GuestTimeout]],
    ResumeRefused = &[
        &[UnknownVm, VmEnded, VmNotOnDisk, QuotaExceeded, TemplateDamaged, TemplateNotReady, NoCapacity], SWARM,
        &[BootFailed, GuestTimeout],
    ],
    ChangeVmRefused = &[&[UnknownVm, NameTaken], SWARM],
    WatchRefused = &[PLACE, PATH, &[WatchLimit]],
    /// A command on the server, or in a VM.
    ExecAnywhereRefused = &[PLACE, COMMAND, &[ExecUnavailable]],
    /// A command in a VM.
    ExecRefused = &[PLACE, COMMAND],
    /// A command over a WebSocket.
    DuplexRefused = &[&[UpgradeRequired], PLACE, &[InvalidValue]],
    /// Reconnecting to a running command.
    ExecReconnectRefused = &[PLACE, &[UnknownExec]],
    CreateTicketRefused = &[&[QuotaExceeded], IDEMPOTENCY, TICKET_FIELDS],
    CreateTicketsRefused = &[&[Cycle, QuotaExceeded], IDEMPOTENCY, TICKET_FIELDS],
    /// Claiming any ready ticket.
    ClaimRefused = &[IDEMPOTENCY],
    TicketRefused = &[&[UnknownTicket]],
    TicketLogRefused = &[&[UnknownTicket, UnknownLog]],
    ChangeTicketRefused = &[&[UnknownTicket], ATTEMPT, CLAIM, &[Cycle, VersionStale, QuotaExceeded], TICKET_FIELDS],
    BeatRefused = &[&[UnknownTicket], ATTEMPT],
    DeleteTicketRefused = &[&[UnknownTicket, TicketState, HasDependents, VersionStale]],
    /// A list that is served as JSON or as CSV.
    ListFormatRefused = &[&[NotAcceptable]],
    /// A file of the documentation pages.
    DocsFileRefused = &[&[UnknownRoute]],
    /// Routes that change files but are not endpoints.
    FilesWriteRefused = WRITE_REFUSALS,
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
        ErrorCode::UnknownVm => {
            "no VM `4242` in this account; list the account's VMs to see their ids and names"
        }
        ErrorCode::StoreUnavailable => "the store is unavailable; try again later",
        other => other.meaning(),
    }
}
