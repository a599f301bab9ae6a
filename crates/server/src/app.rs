//! Builds the router from its routes and the layers around them.

use std::{
    any::Any,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    Router,
    extract::{Request, State},
    middleware::{from_fn, from_fn_with_state},
    response::{IntoResponse, Response},
};
use http::{HeaderValue, header::CACHE_CONTROL};
use jiff::Timestamp;
use skep_api::{ErrorCode, Failure};
use skep_store::Store;
use skep_workspace::EntryLocks;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tower_http::{catch_panic::CatchPanicLayer, set_header::SetResponseHeaderLayer};
use utoipa_axum::router::OpenApiRouter;

use crate::{
    account_roots::RootRules,
    audit::{Actions, AuditQueue, AuditState, audit_request},
    auth::{Authenticator, authenticate},
    documented_routes::{DocumentedRoutes, check_documented},
    door::{
        admission::{Admission, admit, limit_without_key, resolve_origin},
        limits::{Limiter, Limits},
        origin::TrustedProxies,
        vm_listener::refuse_vms,
    },
    error::{Refusal, UNKNOWN_ROUTE},
    events::Tail,
    extract::not_utf8,
    helper::StartHelper,
    key_uses::KeyUses,
    metrics::{Collector, Metrics},
    openapi,
    operation_runner::OperationRunner,
    own_url::PublicUrl,
    percent::percent_decoded,
    request_log::observe,
    restart::Restart,
    routes::{
        Routes,
        accounts::{self, AccountsState},
        admin,
        audit::{self, AuditLogState},
        boot::BootDefaults,
        dashboard::{self, Dashboard},
        docs,
        events::{self, EventsState},
        exec,
        exec_state::ExecState,
        files, git_credentials,
        health::{self, HealthState},
        keys::{self, KeysState},
        metrics, openapi as document,
        operations::{self, OperationsState},
        raw::FilesState,
        session::{self, SessionState},
        swarm::{self, SwarmState},
        swarm_metrics::{self, SwarmMetricsState},
        system::{self, SystemState},
        templates::{self, TemplatesState},
        tickets::{self, TicketsState},
        vms as vms_list,
        waitlist::{self, WaitlistState},
        webhooks::{self, WebhooksState},
        whoami,
    },
    swarm_handle::{SwarmHandle, SwarmReceiver},
    template_builds::TemplateBuilds,
    tickets::{InProgressRequests, Waiters},
    vault::Vault,
    watchers::WatchCounts,
    webhooks::WebhookContext,
    workspace_disk::WorkspaceDisk,
    workspaces::Workspaces,
};

/// The dependencies of the routes.
#[derive(Clone)]
pub struct Parts {
    /// Accounts, keys, VMs and events.
    pub store: Arc<dyn Store>,
    /// The swarm, or why there is none.
    pub swarm: SwarmReceiver,
    /// Starts the helper processes that run programs on this machine.
    pub helper: StartHelper,
    /// Starts a successor of this server.
    pub restart: Restart,
    /// The data directory; the health route reports the free space of its disk.
    pub data_dir: PathBuf,
    /// Which folders may be account roots, and where default roots are created.
    pub roots: RootRules,
    /// The files of accounts that have a limit on disk space.
    pub workspace_disk: WorkspaceDisk,
    /// Values for what a boot request leaves out.
    pub boot: BootDefaults,
    /// Last uses of keys, written in batches.
    pub key_uses: KeyUses,
    pub metrics: Metrics,
    /// Audit entries, written in batches.
    pub audit: AuditQueue,
    pub limits: Limits,
    /// Private networks and hosts that git may reach.
    pub git_allow: Vec<String>,
    /// Networks and hosts that nothing may reach.
    pub egress_deny: Vec<String>,
    /// The proxies whose `X-Forwarded-*` headers are used.
    pub proxies: TrustedProxies,
    /// The address in links to this server.
    pub public_url: Option<PublicUrl>,
    /// Requests that wait for a claimable ticket.
    pub(crate) waiters: Waiters,
    /// Templates that are handed to the keeper to be built.
    pub(crate) builds: TemplateBuilds,
    pub(crate) tail: Tail,
    /// How webhook secrets are encrypted, and which addresses webhooks may reach.
    pub(crate) outgoing: WebhookContext,
    /// The dashboard; `None` if this binary was built without it.
    pub dashboard: Option<Dashboard>,
    /// True once the server is to stop: requests that wait for a ticket return.
    pub stopping: watch::Receiver<bool>,
    /// True once the remaining connections are about to be closed.
    pub closing: watch::Receiver<bool>,
    /// WebSocket sessions, which the HTTP library no longer tracks as connections.
    pub sessions: TaskTracker,
}

/// The whole service as one router, which needs the caller's address as `ConnectInfo<SocketAddr>`.
///
/// # Errors
/// `internal` where the OpenAPI document cannot be serialized.
pub fn router(parts: Parts) -> Result<Router, Failure> {
    let limiter = Arc::new(Limiter::new(&parts.limits));
    let (document_text, actions) = (document::Document::new(OnceLock::new()), Arc::new(OnceLock::new()));
    let documented_cell = Arc::new(OnceLock::new());
    let [health, public @ ..] = public_routes(&parts, &limiter, &document_text);
    let gate = Arc::new(Authenticator::new(
        parts.store.clone(),
        parts.key_uses.clone(),
        Arc::clone(&limiter),
        &parts.limits,
    ));
    let guarded = guarded_routes(&parts, &limiter, &actions, &gate)?;
    let pages = dashboard::router(parts.dashboard).layer(from_fn(limit_without_key));
    let Parts { metrics: counted, audit: queue, limits, proxies, .. } = parts;
    let entrance = Arc::new(Admission::new(proxies, limiter, &limits));
    let documented_layer = from_fn_with_state(Arc::clone(&documented_cell), check_documented);
    let guarded = documented(guarded).layer(documented_layer.clone());
    let guarded = guarded.layer(from_fn_with_state(Arc::clone(&gate), authenticate));
    let public = documented(public).layer(from_fn(refuse_vms));
    let public = documented([health]).merge(public).layer(documented_layer).layer(from_fn(limit_without_key));
    let merged = OpenApiRouter::with_openapi(openapi::base_document()).merge(public).merge(guarded);
    let (router, mut description) = merged.split_for_parts();
    openapi::complete(&mut description);
    let audit_state = AuditState { actions: Arc::new(Actions::from_document(&description)), queue };
    // Each cell is set here only, so `set` cannot fail.
    let _ = document_text.set(openapi::to_json(&description)?.into());
    let _ = actions.set(Arc::clone(&audit_state.actions));
    let _ = documented_cell.set(DocumentedRoutes::from_document(&description));
    let fallback = Router::new().fallback(unknown_route).with_state(gate);
    // Without this header, a browser derives how long it may keep a file from its `Last-Modified` (RFC 9111, section
    // 4.2.2), and shows the old content after a change.
    let uncached =
        SetResponseHeaderLayer::if_not_present(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(router
        .layer(uncached)
        .merge(pages)
        .fallback_service(fallback)
        .layer(from_fn_with_state(Arc::clone(&entrance), admit))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(audit_state, audit_request))
        .layer(from_fn_with_state(counted, observe))
        .layer(from_fn_with_state(entrance, resolve_origin)))
}

/// Routes that need no key. The first of them is served to VMs too.
fn public_routes(parts: &Parts, limiter: &Arc<Limiter>, text: &document::Document) -> [Routes; 4] {
    let vitals = HealthState {
        store: parts.store.clone(),
        vms: SwarmHandle::new(parts.swarm.clone()),
        data_dir: parts.data_dir.clone(),
        started: Instant::now(),
    };
    let waitlist = WaitlistState::new(parts.store.clone(), Arc::clone(limiter));
    [
        health::routes(vitals),
        document::routes(Arc::clone(text)),
        docs::routes(),
        waitlist::public_routes(waitlist),
    ]
}

fn guarded_routes(
    parts: &Parts,
    limiter: &Arc<Limiter>,
    actions: &Arc<OnceLock<Arc<Actions>>>,
    gate: &Arc<Authenticator>,
) -> Result<Vec<Routes>, Failure> {
    let readings = parts.readings();
    let (store, vms) = (&parts.store, readings.vms.clone());
    let workspaces = Workspaces::new(parts.roots.clone());
    let runner = parts.operation_runner(&vms, &workspaces)?;
    let (closing, sessions) = (parts.closing.clone(), parts.sessions.clone());
    let vault = Vault::new(store.clone(), &parts.data_dir);
    let operations = OperationsState {
        runner: runner.clone(),
        vault: vault.clone(),
        allow: parts.git_allow.clone().into(),
        deny: parts.egress_deny.clone().into(),
    };
    let files = FilesState {
        runner: runner.clone(),
        store: store.clone(),
        closing: closing.clone(),
        watchers: WatchCounts::default(),
    };
    Ok(vec![
        whoami::routes(),
        metrics::routes(readings),
        session::routes(SessionState {
            store: store.clone(),
            gate: Arc::clone(gate),
            public_url: parts.public_url.clone(),
        }),
        keys::routes(&KeysState { store: Arc::clone(store), vms: vms.clone() }),
        accounts::routes(&AccountsState {
            store: Arc::clone(store),
            vms: vms.clone(),
            workspaces,
            workspace_disk: parts.workspace_disk.clone(),
        }),
        swarm::routes(parts.swarm_state(&vms)),
        vms_list::routes(store.clone(), vms.clone()),
        template_routes(parts, &vms),
        event_and_ticket_routes(parts),
        reading_routes(parts, &vms),
        webhooks::routes(&parts.webhook_state()),
        waitlist::routes(WaitlistState::new(store.clone(), Arc::clone(limiter))),
        audit::routes(&AuditLogState { store: store.clone(), actions: Arc::clone(actions) }),
        files::routes(files),
        operations::routes(&operations),
        git_credentials::routes(&vault),
        admin::routes(&parts.restart),
        exec::routes(ExecState { vms, runner, store: store.clone(), closing, sessions }),
    ])
}

fn template_routes(parts: &Parts, vms: &SwarmHandle) -> Routes {
    templates::routes(TemplatesState {
        store: parts.store.clone(),
        vms: vms.clone(),
        builds: parts.builds.clone(),
        in_progress: InProgressRequests::default(),
    })
}

fn event_and_ticket_routes(parts: &Parts) -> Routes {
    let (store, stopping) = (&parts.store, &parts.stopping);
    let events =
        EventsState { store: Arc::clone(store), tail: parts.tail.clone(), stopping: stopping.clone() };
    let tickets = TicketsState {
        store: store.clone(),
        waiters: parts.waiters.clone(),
        in_progress: InProgressRequests::default(),
        stopping: stopping.clone(),
    };
    let mut routes = events::routes(events);
    routes.extend(tickets::routes(tickets));
    routes
}

/// Routes that read the state of the machine and samples of its VMs.
fn reading_routes(parts: &Parts, vms: &SwarmHandle) -> Routes {
    let mut routes = swarm_metrics::routes(SwarmMetricsState {
        vms: vms.clone(),
        store: parts.store.clone(),
        stopping: parts.stopping.clone(),
    });
    routes.extend(system::routes(&SystemState {
        vms: vms.clone(),
        store: parts.store.clone(),
        data_dir: parts.data_dir.clone(),
        started: Instant::now(),
        started_at: Timestamp::now(),
    }));
    routes
}

impl Parts {
    fn operation_runner(
        &self,
        vms: &SwarmHandle,
        workspaces: &Workspaces,
    ) -> Result<OperationRunner, Failure> {
        let (disk, locks) = (self.workspace_disk.clone(), self.entry_locks()?);
        Ok(OperationRunner::new(vms.clone(), &self.helper, workspaces, disk, locks))
    }

    fn swarm_state(&self, vms: &SwarmHandle) -> SwarmState {
        SwarmState {
            vms: vms.clone(),
            workspace_disk: self.workspace_disk.clone(),
            defaults: self.boot,
            store: self.store.clone(),
            in_progress: InProgressRequests::default(),
        }
    }

    fn webhook_state(&self) -> WebhooksState {
        WebhooksState { store: self.store.clone(), context: self.outgoing.clone() }
    }

    /// The locks on workspace entries, kept in a file so that both servers of a restart share them.
    fn entry_locks(&self) -> Result<EntryLocks, Failure> {
        let path = self.data_dir.join("entry.locks");
        EntryLocks::in_file(&path).map_err(|error| {
            let message = format!("the lock file {} cannot be opened: {error}", path.display());
            Failure::new(ErrorCode::Internal, message)
        })
    }

    /// What the metrics route reads its gauges from.
    pub(crate) fn readings(&self) -> Collector {
        Collector {
            metrics: self.metrics.clone(),
            store: self.store.clone(),
            vms: SwarmHandle::new(self.swarm.clone()),
            data_dir: self.data_dir.clone(),
        }
    }
}

/// Adds every route together with its OpenAPI description.
fn documented(subjects: impl IntoIterator<Item = Routes>) -> OpenApiRouter {
    subjects.into_iter().flatten().fold(OpenApiRouter::default(), OpenApiRouter::routes)
}

/// Answers requests that no route matches. Below /api the key is checked first, so that a caller without one cannot
/// find out which paths exist.
async fn unknown_route(State(gate): State<Arc<Authenticator>>, request: Request) -> Refusal {
    let path = request.uri().path();
    if (path == "/api" || path.starts_with("/api/"))
        && let Err(refusal) =
            gate.authenticate_request(request.uri(), request.headers(), request.extensions()).await
    {
        return refusal;
    }
    if percent_decoded(path).is_err() {
        return not_utf8().into();
    }
    Refusal::new(ErrorCode::UnknownRoute, UNKNOWN_ROUTE)
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    Refusal::internal(format!("panic: {text}")).into_response()
}
