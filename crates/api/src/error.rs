//! Errors as callers see them: a stable code, the kind that the code belongs to, and a message.

use serde::{Deserialize, Serialize};

/// The category of an error. Each kind corresponds to one HTTP status; the mapping is in the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A parameter is missing, unknown or malformed (400).
    BadRequest,
    /// The request has no key, or an unknown one (401).
    Unauthenticated,
    /// The key is known, but does not permit the request (403).
    Forbidden,
    /// The resource does not exist, or is not visible to the caller (404).
    NotFound,
    /// The route exists, but not with this method (405).
    MethodNotAllowed,
    /// No media type that the caller accepts can be produced (406).
    NotAcceptable,
    /// The current state of a resource does not permit the request (409).
    Conflict,
    /// `If-Match` or `If-None-Match` does not hold (412).
    PreconditionFailed,
    /// The request or the answer exceeds a limit, which the message names (413).
    TooLarge,
    /// The requested byte range lies outside the file (416).
    RangeNotSatisfiable,
    /// The body is not JSON (415).
    UnsupportedMediaType,
    /// The request is well-formed, but cannot be carried out (422).
    Unprocessable,
    /// The caller sends too many requests (429).
    RateLimited,
    /// A fault of the server. The cause is in the log, never in the message (500).
    Internal,
    /// The server has no capacity, is shutting down, or a dependency is unavailable (503).
    Unavailable,
    /// The guest did not answer in time, or not validly (504).
    GuestTimeout,
}

macro_rules! error_codes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $text:literal => $kind:ident),+ $(,)?) => {
        /// The stable code of an error, sent in the header `Skep-Error`, so that programs need not parse the message.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum ErrorCode {
            $($(#[doc = $doc])+ #[serde(rename = $text)] $variant,)+
        }

        impl ErrorCode {
            /// Every code, in the order of this file.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$variant),+];

            /// The code as it is sent, such as `unknown_vm`.
            pub const fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$variant => $text),+ }
            }

            /// Returns the documentation comment of the variant: what the code means, in one sentence.
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
    /// The body is not valid JSON, not UTF-8, or incomplete.
    MalformedBody = "malformed_body" => BadRequest,
    /// The path, the query or a header of the request is malformed.
    MalformedRequest = "malformed_request" => BadRequest,
    /// The request lacks the WebSocket upgrade that this path requires; a proxy may have removed the `Upgrade`
    /// header.
    UpgradeRequired = "upgrade_required" => BadRequest,
    /// The request has a field or query parameter that the operation does not define.
    UnknownField = "unknown_field" => BadRequest,
    /// A parameter that the operation requires is missing.
    MissingParameter = "missing_parameter" => BadRequest,
    /// A parameter has a value outside its permitted range or form.
    InvalidValue = "invalid_value" => BadRequest,
    /// The request has no `Authorization` header.
    MissingToken = "missing_token" => Unauthenticated,
    /// The token is malformed or unknown.
    InvalidToken = "invalid_token" => Unauthenticated,
    /// The key has expired or was revoked.
    TokenExpired = "token_expired" => Forbidden,
    /// The key lacks the scope that the operation requires.
    ScopeMissing = "scope_missing" => Forbidden,
    /// The account does not allow requests from the caller's address.
    AddressNotAllowed = "address_not_allowed" => Forbidden,
    /// The request did not arrive over HTTPS, or not through the configured proxy.
    HttpsRequired = "https_required" => Forbidden,
    /// The key is bound to one VM: of all tickets it may only renew and finish the one that this VM holds.
    VmKeyLimited = "vm_key_limited" => Forbidden,
    /// The API address for VMs accepts only the calling VM's own key, and only the operations served there.
    VmKeyRequired = "vm_key_required" => Forbidden,
    /// The operation needs the key itself, not a browser session.
    KeyRequired = "key_required" => Forbidden,
    /// Browser sessions of this key exist at another host name of the server.
    SessionHostRequired = "session_host_required" => Forbidden,
    /// The path does not lie below a root.
    PathOutsideRoots = "path_outside_roots" => Forbidden,
    /// The remote's address is private, or of a kind that git may not use here.
    RemoteForbidden = "remote_forbidden" => Forbidden,
    /// The user that runs the workspace lacks permission for this file.
    PermissionDenied = "permission_denied" => Forbidden,
    /// The route does not exist.
    UnknownRoute = "unknown_route" => NotFound,
    /// The account has no such VM.
    UnknownVm = "unknown_vm" => NotFound,
    /// The template does not exist.
    UnknownTemplate = "unknown_template" => NotFound,
    /// The account has no such key.
    UnknownKey = "unknown_key" => NotFound,
    /// The account does not exist.
    UnknownAccount = "unknown_account" => NotFound,
    /// The waitlist has no entry with this id or address.
    UnknownWaitlistEntry = "unknown_waitlist_entry" => NotFound,
    /// The account has no such ticket.
    UnknownTicket = "unknown_ticket" => NotFound,
    /// The ticket has no such log: no boot command worked on it, or the log is older than 30 days.
    UnknownLog = "unknown_log" => NotFound,
    /// The account has no such webhook.
    UnknownWebhook = "unknown_webhook" => NotFound,
    /// The webhook has no such delivery.
    UnknownDelivery = "unknown_delivery" => NotFound,
    /// The VM has no such command: it was never started, or its record was removed.
    UnknownExec = "unknown_exec" => NotFound,
    /// The path does not exist.
    UnknownPath = "unknown_path" => NotFound,
    /// There is no repository at this path.
    UnknownRepository = "unknown_repository" => NotFound,
    /// The commit, branch or other revision does not exist.
    UnknownRevision = "unknown_revision" => NotFound,
    /// The remote is not configured in the repository, or does not exist at its URL.
    UnknownRemote = "unknown_remote" => NotFound,
    /// There is no credential for this host.
    UnknownCredential = "unknown_credential" => NotFound,
    /// The route exists, but not with this method.
    MethodNotAllowed = "method_not_allowed" => MethodNotAllowed,
    /// No media type that the caller accepts can be produced.
    NotAcceptable = "not_acceptable" => NotAcceptable,
    /// The body's content type is not JSON.
    NotJson = "not_json" => UnsupportedMediaType,
    /// The name is already in use.
    NameTaken = "name_taken" => Conflict,
    /// The account `default` cannot be deleted, and its settings that come from the server's configuration cannot be
    /// changed.
    AccountProtected = "account_protected" => Conflict,
    /// The template belongs to the server or to another account, so this one cannot delete it.
    TemplateProtected = "template_protected" => Conflict,
    /// VMs or other templates of the account need the template.
    TemplateInUse = "template_in_use" => Conflict,
    /// The template is being built or could not be built, so no VM can be restored from it.
    TemplateNotReady = "template_not_ready" => Conflict,
    /// The account still has VMs.
    AccountInUse = "account_in_use" => Conflict,
    /// The folder intended for the account's workspace already holds files of another account.
    WorkspaceTaken = "workspace_taken" => Conflict,
    /// The key was already revoked or rotated.
    KeyNotValid = "key_not_valid" => Conflict,
    /// The VM ended during the request.
    VmEnded = "vm_ended" => Conflict,
    /// The VM is paused, and the request needs it to run.
    VmPaused = "vm_paused" => Conflict,
    /// The VM is not paused to disk, and the request needs that.
    VmNotOnDisk = "vm_not_on_disk" => Conflict,
    /// The request exceeds what is left of the account's quota.
    QuotaExceeded = "quota_exceeded" => Conflict,
    /// The webhook is disabled, so nothing is sent.
    WebhookDisabled = "webhook_disabled" => Conflict,
    /// A file stands where a directory is required, or the reverse.
    NotADirectory = "not_a_directory" => Conflict,
    /// The path is a directory, or a file without content such as a FIFO, a device or a socket.
    NotAFile = "not_a_file" => Conflict,
    /// The directory is not empty.
    NotEmpty = "not_empty" => Conflict,
    /// The limit of watches for one account, or of watched folders for one watch, is reached.
    WatchLimit = "watch_limit" => Conflict,
    /// The path already exists.
    AlreadyExists = "already_exists" => Conflict,
    /// There is nothing to commit or to stash.
    NothingToCommit = "nothing_to_commit" => Conflict,
    /// Another git process is using the repository, or one ended and left its lock file.
    RepositoryLocked = "repository_locked" => Conflict,
    /// The repository is bare: it has no work tree.
    BareRepository = "bare_repository" => Conflict,
    /// The repository's own configuration would start programs or redirect git elsewhere; the message names the
    /// setting.
    HostileRepository = "hostile_repository" => Conflict,
    /// The changes conflict in at least one file.
    MergeConflict = "merge_conflict" => Conflict,
    /// The remote rejected the push; the message contains its output.
    PushRejected = "push_rejected" => Conflict,
    /// The remote did not answer as a git server, or requires a credential; the message contains git's output.
    RemoteFailed = "remote_failed" => Conflict,
    /// Git failed; the message contains its output.
    GitRefused = "git_refused" => Conflict,
    /// Git exceeded its time limit.
    GitTimeout = "git_timeout" => Conflict,
    /// The command could not be started.
    ExecFailed = "exec_failed" => Conflict,
    /// The current settings cannot start a server, or the change requires more than a restart.
    RestartRefused = "restart_refused" => Conflict,
    /// The ticket is held by another holder.
    ClaimLost = "claim_lost" => Conflict,
    /// The ticket depends on tickets that are not completed.
    Blocked = "blocked" => Conflict,
    /// The ticket cannot be claimed yet, because of `not_before` or a back-off.
    NotYet = "not_yet" => Conflict,
    /// A later attempt has replaced this one.
    Superseded = "superseded" => Conflict,
    /// The lease has expired or the ticket was released, so the caller no longer holds it.
    LeaseLost = "lease_lost" => Conflict,
    /// The ticket's status does not permit the request.
    TicketState = "ticket_state" => Conflict,
    /// The dependencies of tickets would form a cycle.
    Cycle = "cycle" => Conflict,
    /// Unfinished tickets depend on this ticket.
    HasDependents = "has_dependents" => Conflict,
    /// A request with the same `Idempotency-Key` is in progress.
    IdempotencyInProgress = "idempotency_in_progress" => Conflict,
    /// `If-Match` does not hold: the ticket has a different version.
    VersionStale = "version_stale" => PreconditionFailed,
    /// `If-Match` or `If-None-Match` does not hold for the file.
    PreconditionFailed = "precondition_failed" => PreconditionFailed,
    /// A field exceeds its size limit.
    FieldTooLarge = "field_too_large" => TooLarge,
    /// A dependency names a ticket that does not exist in this account.
    UnknownDependency = "unknown_dependency" => Unprocessable,
    /// The `Idempotency-Key` was already used with a different request body.
    IdempotencyMismatch = "idempotency_mismatch" => Unprocessable,
    /// The body or the answer exceeds its size limit.
    BodyTooLarge = "body_too_large" => TooLarge,
    /// The requested byte range lies outside the file.
    RangeNotSatisfiable = "range_not_satisfiable" => RangeNotSatisfiable,
    /// The regular expression or glob is invalid, or too large.
    InvalidPattern = "invalid_pattern" => Unprocessable,
    /// The folders are nested more deeply than the operation supports.
    TooDeep = "too_deep" => Unprocessable,
    /// The content is not valid text in the requested encoding.
    NotText = "not_text" => Unprocessable,
    /// The path leads through too many symbolic links.
    TooManyLinks = "too_many_links" => Unprocessable,
    /// The template does not match its checksums.
    TemplateDamaged = "template_damaged" => Unprocessable,
    /// The caller sends too many requests.
    RateLimited = "rate_limited" => RateLimited,
    /// An internal error of the server; the cause is in the server's log.
    Internal = "internal" => Internal,
    /// The machine has no capacity for the requested VMs.
    NoCapacity = "no_capacity" => Unavailable,
    /// Other requests use all memory reserved for them, or there are as many under way as may be at the same time.
    Overloaded = "overloaded" => Unavailable,
    /// VMs cannot run on this machine, or were not enabled when the server started; the message says why.
    SwarmUnavailable = "swarm_unavailable" => Unavailable,
    /// The server cannot start programs at present.
    ExecUnavailable = "exec_unavailable" => Unavailable,
    /// A VM could not be started; everything that its boot had created was removed.
    BootFailed = "boot_failed" => Unavailable,
    /// The disk, or the share of it that the workspace's user may use, is full.
    DiskFull = "disk_full" => Unavailable,
    /// The file keeps changing because of other requests, or its file system does not respond.
    FileBusy = "file_busy" => Unavailable,
    /// The server is shutting down.
    ShuttingDown = "shutting_down" => Unavailable,
    /// The store is unavailable.
    StoreUnavailable = "store_unavailable" => Unavailable,
    /// The guest did not answer in time, or its agent sent an invalid answer.
    GuestTimeout = "guest_timeout" => GuestTimeout,
}

/// An error as it is passed between processes and to the caller. Code and message stay unchanged on the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// For programs.
    pub code: ErrorCode,
    /// For people: which value was wrong, why, and how to proceed.
    pub message: String,
}

impl Failure {
    /// Creates an error with this code and message.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The error for a VM that the account does not have. The text is the same whether or not another account has the
    /// VM, so that callers cannot probe for VMs of others.
    pub fn unknown_vm(name: impl std::fmt::Display) -> Self {
        let message =
            format!("no VM `{name}` in this account; list the account's VMs to see their ids and names");
        Self::new(ErrorCode::UnknownVm, message)
    }

    /// The error for a key that the account does not have. No key has a malformed id.
    pub fn unknown_key(id: impl std::fmt::Display) -> Self {
        Self::new(ErrorCode::UnknownKey, format!("no key `{id}`; list the account's keys to see their ids"))
    }

    /// The error for an account that does not exist, given by id or name.
    pub fn unknown_account(account: impl std::fmt::Display) -> Self {
        let message = format!("no account `{account}`; list the accounts to see their ids and names");
        Self::new(ErrorCode::UnknownAccount, message)
    }

    /// The error for a webhook that the account does not have.
    pub fn unknown_webhook(id: impl std::fmt::Display) -> Self {
        let message = format!("no webhook `{id}`; list the account's webhooks to see their ids");
        Self::new(ErrorCode::UnknownWebhook, message)
    }

    /// The error for a delivery that the webhook does not have.
    pub fn unknown_delivery(id: impl std::fmt::Display) -> Self {
        let message = format!(
            "no delivery `{id}` of this webhook; list its deliveries, which are kept as long as their events"
        );
        Self::new(ErrorCode::UnknownDelivery, message)
    }

    /// The error for a request that needs a paused VM to run.
    pub fn vm_paused(vm: crate::VmId) -> Self {
        Self::new(ErrorCode::VmPaused, format!("VM {vm} is paused; resume it first"))
    }

    /// The error for a template that does not exist.
    pub fn unknown_template(name: impl std::fmt::Display) -> Self {
        Self::new(
            ErrorCode::UnknownTemplate,
            format!("no template `{name}`; list the templates to see those that this account may use"),
        )
    }

    /// The kind of [`Self::code`].
    pub fn kind(&self) -> ErrorKind {
        self.code.kind()
    }
}

/// The body of every error response: the reason phrase of the status and a message. The code is in the header
/// `Skep-Error`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// The reason phrase of the status, such as `Not Found`.
    #[cfg_attr(feature = "openapi", schema(example = "Not Found"))]
    pub error: String,
    /// What was wrong with which value, and what to do about it.
    #[cfg_attr(
        feature = "openapi",
        schema(example = "no VM `4242` in this account; list the account's VMs to see their ids and names")
    )]
    pub message: String,
}
