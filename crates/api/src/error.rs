//! How a refusal is told: a stable code, the kind that the code belongs to, and a message for the caller.

use serde::{Deserialize, Serialize};

/// What sort of refusal it is. Each kind is one HTTP status; only the server knows which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A parameter is missing, unknown or malformed.
    BadRequest,
    /// No key, or none that we know.
    Unauthenticated,
    /// The key is known, and may not do this.
    Forbidden,
    /// There is no such thing for this caller.
    NotFound,
    /// The route exists, but not with this method.
    MethodNotAllowed,
    /// Nothing that the caller accepts can be answered.
    NotAcceptable,
    /// The state forbids it.
    Conflict,
    /// `If-Match` does not hold.
    PreconditionFailed,
    /// Larger than a limit, which the message names.
    TooLarge,
    /// A part that the file does not have.
    RangeNotSatisfiable,
    /// The body is not JSON.
    UnsupportedMediaType,
    /// Well-formed, but impossible.
    Unprocessable,
    /// Too many requests.
    RateLimited,
    /// A fault of ours. The cause is in the log, never in the message.
    Internal,
    /// No capacity, shutting down, or a dependency is away.
    Unavailable,
    /// The guest did not answer in time.
    GuestTimeout,
}

macro_rules! error_codes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $text:literal => $kind:ident),+ $(,)?) => {
        /// A stable name of one refusal, sent as `Skep-Error`, so that no program has to read prose.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum ErrorCode {
            $($(#[doc = $doc])+ #[serde(rename = $text)] $variant,)+
        }

        impl ErrorCode {
            /// Every code, in the order of this file.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant),+];

            /// The name on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$variant => $text),+ }
            }

            /// What it means, in one sentence: its documentation here.
            pub fn meaning(self) -> &'static str {
                match self { $(ErrorCode::$variant => concat!($($doc),+)),+ }.trim_start()
            }

            /// The kind that the code belongs to.
            pub const fn kind(self) -> ErrorKind {
                match self { $(ErrorCode::$variant => ErrorKind::$kind),+ }
            }
        }
    };
}

error_codes! {
    /// The body is not JSON, or not UTF-8, or cut short.
    MalformedBody = "malformed_body" => BadRequest,
    /// The request itself is malformed: its path, its query, a header.
    MalformedRequest = "malformed_request" => BadRequest,
    /// The request does not ask for the WebSocket that this path opens; a proxy may have left out its `Upgrade`.
    UpgradeRequired = "upgrade_required" => BadRequest,
    /// A field or query parameter that the operation does not have.
    UnknownField = "unknown_field" => BadRequest,
    /// A parameter that the operation needs.
    MissingParameter = "missing_parameter" => BadRequest,
    /// A parameter with a value outside what it may be.
    InvalidValue = "invalid_value" => BadRequest,
    /// No `Authorization` header.
    MissingToken = "missing_token" => Unauthenticated,
    /// A token that is malformed or unknown.
    InvalidToken = "invalid_token" => Unauthenticated,
    /// A key that expired or was revoked.
    TokenExpired = "token_expired" => Forbidden,
    /// The key lacks the scope that the operation needs.
    ScopeMissing = "scope_missing" => Forbidden,
    /// The account does not allow the caller's address.
    AddressNotAllowed = "address_not_allowed" => Forbidden,
    /// The request did not come by https, or not by the proxy that it should come by.
    HttpsRequired = "https_required" => Forbidden,
    /// A key that is bound to one VM: of tickets it may only beat and finish that VM's own.
    VmKeyLimited = "vm_key_limited" => Forbidden,
    /// At the address of the API for VMs: another key than that of the calling VM, or an operation that is not served there.
    VmKeyRequired = "vm_key_required" => Forbidden,
    /// A path that does not lie below a root.
    PathOutsideRoots = "path_outside_roots" => Forbidden,
    /// The remote's address is private, or of a kind that git may not use here.
    RemoteForbidden = "remote_forbidden" => Forbidden,
    /// The workspace's user may not do this to the file.
    PermissionDenied = "permission_denied" => Forbidden,
    /// No such route.
    UnknownRoute = "unknown_route" => NotFound,
    /// No such VM of this account.
    UnknownVm = "unknown_vm" => NotFound,
    /// No such template.
    UnknownTemplate = "unknown_template" => NotFound,
    /// No such key of this account.
    UnknownKey = "unknown_key" => NotFound,
    /// No such account.
    UnknownAccount = "unknown_account" => NotFound,
    /// Nobody on the waitlist by this id or address.
    UnknownWaitlistEntry = "unknown_waitlist_entry" => NotFound,
    /// No such ticket of this account.
    UnknownTicket = "unknown_ticket" => NotFound,
    /// The ticket has no such log: no command of a boot worked on it, or its log is older than 30 days.
    UnknownLog = "unknown_log" => NotFound,
    /// No such webhook of this account.
    UnknownWebhook = "unknown_webhook" => NotFound,
    /// No such delivery of this webhook.
    UnknownDelivery = "unknown_delivery" => NotFound,
    /// No such command in this VM: it was never started, or was forgotten.
    UnknownExec = "unknown_exec" => NotFound,
    /// A path that does not exist.
    UnknownPath = "unknown_path" => NotFound,
    /// No repository is at this path.
    UnknownRepository = "unknown_repository" => NotFound,
    /// No such commit, branch or other revision.
    UnknownRevision = "unknown_revision" => NotFound,
    /// No such remote, or it is not there.
    UnknownRemote = "unknown_remote" => NotFound,
    /// No credential for this host.
    UnknownCredential = "unknown_credential" => NotFound,
    /// The route exists, but not with this method.
    MethodNotAllowed = "method_not_allowed" => MethodNotAllowed,
    /// Nothing that the caller accepts can be answered.
    NotAcceptable = "not_acceptable" => NotAcceptable,
    /// The body's content type is not JSON.
    NotJson = "not_json" => UnsupportedMediaType,
    /// The name belongs to another one.
    NameTaken = "name_taken" => Conflict,
    /// The account `default`, and what the server's settings say of it.
    AccountProtected = "account_protected" => Conflict,
    /// VMs of the account live.
    AccountInUse = "account_in_use" => Conflict,
    /// The folder that an account would get holds files of another one.
    WorkspaceTaken = "workspace_taken" => Conflict,
    /// The key was revoked, or rotated before.
    KeyNotValid = "key_not_valid" => Conflict,
    /// The VM ended during the call.
    VmEnded = "vm_ended" => Conflict,
    /// The VM is paused.
    VmPaused = "vm_paused" => Conflict,
    /// More than is left of the account's quota.
    QuotaExceeded = "quota_exceeded" => Conflict,
    /// The webhook is disabled: nothing is sent.
    WebhookDisabled = "webhook_disabled" => Conflict,
    /// A file stands where a directory should be, or the other way round.
    NotADirectory = "not_a_directory" => Conflict,
    /// It is a directory, or has no content: a FIFO, a device, a socket.
    NotAFile = "not_a_file" => Conflict,
    /// A directory that is not empty.
    NotEmpty = "not_empty" => Conflict,
    /// More is watched than one account, or one tree, may have watched.
    WatchLimit = "watch_limit" => Conflict,
    /// Something stands at the path already.
    AlreadyExists = "already_exists" => Conflict,
    /// There is nothing to commit, or to put away.
    NothingToCommit = "nothing_to_commit" => Conflict,
    /// Another git process works in the repository, or one ended and left its lock.
    RepositoryLocked = "repository_locked" => Conflict,
    /// The repository is bare: it has no work tree.
    BareRepository = "bare_repository" => Conflict,
    /// The repository's own settings would start programs or lead elsewhere; the message names which.
    HostileRepository = "hostile_repository" => Conflict,
    /// Two changes meet in a file.
    MergeConflict = "merge_conflict" => Conflict,
    /// The remote did not take what was pushed; the message has its words.
    PushRejected = "push_rejected" => Conflict,
    /// The remote did not answer as a git remote does, or wants a credential; the message has git's words.
    RemoteFailed = "remote_failed" => Conflict,
    /// Git refused; the message has its words.
    GitRefused = "git_refused" => Conflict,
    /// Git did not end in time.
    GitTimeout = "git_timeout" => Conflict,
    /// The command could not be started.
    ExecFailed = "exec_failed" => Conflict,
    /// The settings as they are now cannot start a server, or need more than a restart.
    RestartRefused = "restart_refused" => Conflict,
    /// Somebody else holds the ticket.
    ClaimLost = "claim_lost" => Conflict,
    /// Tickets that this one depends on are not completed.
    Blocked = "blocked" => Conflict,
    /// The ticket's time has not come: `not_before`, or a back-off.
    NotYet = "not_yet" => Conflict,
    /// A later attempt took the place of this one.
    Superseded = "superseded" => Conflict,
    /// The lease ran out, or the ticket was released: its holder holds it no longer.
    LeaseLost = "lease_lost" => Conflict,
    /// The ticket's status does not allow it.
    TicketState = "ticket_state" => Conflict,
    /// Tickets would depend on each other in a circle.
    Cycle = "cycle" => Conflict,
    /// Tickets that are not finished depend on it.
    HasDependents = "has_dependents" => Conflict,
    /// A request with the same `Idempotency-Key` is under way.
    IdempotencyInProgress = "idempotency_in_progress" => Conflict,
    /// `If-Match` does not hold: the ticket has another version.
    VersionStale = "version_stale" => PreconditionFailed,
    /// The file is not what `If-Match` or `If-None-Match` asks for.
    PreconditionFailed = "precondition_failed" => PreconditionFailed,
    /// A field is over its limit.
    FieldTooLarge = "field_too_large" => TooLarge,
    /// A ticket that shall be depended on does not exist in this account.
    UnknownDependency = "unknown_dependency" => Unprocessable,
    /// The `Idempotency-Key` came with another body before.
    IdempotencyMismatch = "idempotency_mismatch" => Unprocessable,
    /// The body, or the answer, is over the limit.
    BodyTooLarge = "body_too_large" => TooLarge,
    /// A part of a file that it does not have.
    RangeNotSatisfiable = "range_not_satisfiable" => RangeNotSatisfiable,
    /// A regex or a glob that is none, or too large.
    InvalidPattern = "invalid_pattern" => Unprocessable,
    /// Folders in folders, more than are gone through.
    TooDeep = "too_deep" => Unprocessable,
    /// Content that is no text in the encoding that was asked for.
    NotText = "not_text" => Unprocessable,
    /// The path leads through too many links.
    TooManyLinks = "too_many_links" => Unprocessable,
    /// The template does not match its checksums.
    TemplateDamaged = "template_damaged" => Unprocessable,
    /// Too many requests.
    RateLimited = "rate_limited" => RateLimited,
    /// A fault of ours.
    Internal = "internal" => Internal,
    /// The machine cannot hold more.
    NoCapacity = "no_capacity" => Unavailable,
    /// Other large requests and answers take all the memory that is there for them.
    Overloaded = "overloaded" => Unavailable,
    /// This machine or this start cannot run VMs; the message says why.
    SwarmUnavailable = "swarm_unavailable" => Unavailable,
    /// This server cannot start programs now.
    ExecUnavailable = "exec_unavailable" => Unavailable,
    /// A VM did not come up; none of its boot is left.
    BootFailed = "boot_failed" => Unavailable,
    /// The disk, or what the workspace's user may have of it, is full.
    DiskFull = "disk_full" => Unavailable,
    /// Other requests change the file without a pause, or its file system does not answer.
    FileBusy = "file_busy" => Unavailable,
    /// The server is shutting down.
    ShuttingDown = "shutting_down" => Unavailable,
    /// The store is away.
    StoreUnavailable = "store_unavailable" => Unavailable,
    /// The guest did not answer in time.
    GuestTimeout = "guest_timeout" => GuestTimeout,
}

/// A refusal as it crosses a border: out of a VM, or to the caller. Code and message stay as they were made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What a program reads.
    pub code: ErrorCode,
    /// What a person reads: what was wrong with which value, and what to do about it.
    pub message: String,
}

impl Failure {
    /// A refusal with its message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The refusal for what is no VM of the caller's account: the same words whether it exists elsewhere or nowhere.
    pub fn unknown_vm(name: impl std::fmt::Display) -> Self {
        let message = format!("no VM `{name}` in this account; GET /api/swarm/status lists its VMs");
        Self::new(ErrorCode::UnknownVm, message)
    }

    /// The refusal for what is no template.
    pub fn unknown_template(name: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::UnknownTemplate, format!("no template `{name}`; this server has `base`"))
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code.kind()
    }
}

/// The body of every refusal: the status' reason phrase and the message (the spec, part 7).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// The reason phrase of the status, such as `Not Found`.
    #[cfg_attr(feature = "openapi", schema(example = "Not Found"))]
    pub error: String,
    /// What was wrong with which value, and what to do about it.
    #[cfg_attr(
        feature = "openapi",
        schema(example = "no VM `4242` in this account; GET /api/swarm/status lists its VMs")
    )]
    pub message: String,
}
