//! Serves the requests of one server.

use std::{os::fd::OwnedFd, sync::Arc};

use skep_api::HelperKind;
use skep_keeper_protocol::{Answer, Answerer, KeeperEnd, Request, ServerSetup};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinSet, spawn_blocking},
};

use crate::{
    Error, ServerConfig,
    helpers::{Helpers, ServerId},
    service_manager,
    vmms::Vmms,
};

/// Concurrent requests per server: one for each VM that a machine may hold, and some more. Further requests wait,
/// because each takes memory here until the server has read its answer.
const MAX_CONCURRENT_REQUESTS: usize = 1024;

/// What the requests of one server act on. Cheap to clone.
#[derive(Clone)]
pub(crate) struct ServerContext {
    pub(crate) server: ServerId,
    /// The settings that it was started with.
    pub(crate) server_config: ServerConfig,
    pub(crate) helpers: Arc<Helpers>,
    /// Requests to the supervisor of servers.
    pub(crate) calls: mpsc::Sender<LifecycleCall>,
    /// `None` if this machine cannot run VMs.
    pub(crate) vmms: Option<Arc<Vmms>>,
}

/// A request of a server that concerns its own lifecycle.
pub(crate) enum LifecycleCall {
    /// Replace this server by a new one.
    Restart(Answerer),
    /// This server is ready and waits for its predecessor to end.
    Ready(Answerer),
    /// This server cannot replace its predecessor, with the reason.
    Unable(String),
}

/// Serves one server until its socket closes or `cut` is dropped, then completes the requests in progress.
pub(crate) async fn serve(
    mut end: KeeperEnd,
    setup: ServerSetup,
    listeners: Vec<OwnedFd>,
    context: ServerContext,
    cut: oneshot::Receiver<()>,
) {
    if let Err(error) = end.send_setup(&setup, &listeners).await {
        return tracing::error!(%error, "the setup could not be sent to the server");
    }
    drop(listeners);
    let perform = |request, answerer| perform(context.clone(), request, answerer);
    answer_all(&mut end, perform, cut).await;
}

async fn perform(context: ServerContext, request: Request, answerer: Answerer) {
    let call = match request {
        Request::Restart => LifecycleCall::Restart(answerer),
        Request::Ready => LifecycleCall::Ready(answerer),
        Request::Serving => return service_manager::notify_ready(),
        Request::Unable { reason } => LifecycleCall::Unable(reason),
        request => return perform_without_supervisor(context, request, answerer).await,
    };
    // The receiver is gone when the server is being terminated; it needs no answer.
    let _ = context.calls.send(call).await;
}

async fn perform_without_supervisor(context: ServerContext, request: Request, answerer: Answerer) {
    let none = |answer| (answer, Vec::new());
    let answer = match (request, context) {
        (Request::Tls { seen, serving }, context) => {
            tls(context.server_config.tls, seen, serving).await.map(none)
        }
        (Request::Helper { kind }, context) => {
            helper(context, kind).await.map(|stream| (Answer::Helper, vec![stream]))
        }
        (request, ServerContext { vmms: Some(vmms), .. }) => return vmms.serve(request, answerer).await,
        (_, ServerContext { vmms: None, .. }) => Err(Error::NoSwarm("this server has no VMs".to_owned())),
    };
    let (answer, descriptors) = answer.unwrap_or_else(|error| {
        tracing::warn!(%error, "a request of the server was refused: {error}");
        none(Answer::Refused(error.into()))
    });
    // Fails only if the server is gone.
    let _ = answerer.answer(answer, &descriptors).await;
}

async fn helper(context: ServerContext, kind: HelperKind) -> Result<OwnedFd, Error> {
    let ServerContext { server, server_config: configured, helpers, .. } = context;
    let started = spawn_blocking(move || {
        let order = match kind {
            HelperKind::Commands => &configured.commands_helper,
            HelperKind::Git => &configured.git_helper,
        };
        helpers.start(server, kind, order)
    });
    let started = started.await;
    started.map_err(|error| Error::io("start of a helper")(std::io::Error::other(error)))?
}

/// Reads the files in a blocking task: they may be on slow storage.
async fn tls(files: Option<Arc<crate::TlsFiles>>, seen: u64, serving: u64) -> Result<Answer, Error> {
    let files = files.ok_or(Error::NoCertificate)?;
    let pair = spawn_blocking(move || files.newer_than(seen, serving)).await;
    Ok(Answer::Tls { pair: pair.map_err(|error| Error::io("TLS files")(std::io::Error::other(error)))? })
}

async fn answer_all<F>(
    end: &mut KeeperEnd,
    perform: impl Fn(Request, Answerer) -> F,
    mut cut: oneshot::Receiver<()>,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut under_way = JoinSet::new();
    loop {
        tokio::select! {
            // Answers that wait to be sent fail then.
            _ = &mut cut => break end.close(),
            received = end.receive(), if under_way.len() < MAX_CONCURRENT_REQUESTS => match received {
                Ok(Some((request, answerer))) => drop(under_way.spawn(perform(request, answerer))),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "no further requests of the server are read: {error}");
                    break;
                }
            },
            Some(_) = under_way.join_next() => {}
        }
    }
    while under_way.join_next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use skep_keeper_protocol::{ServerEnd, SwarmAvailability};
    use tokio::sync::Semaphore;

    use super::*;

    /// The keeper's end, which has sent a setup, and the other one.
    async fn with_setup() -> (KeeperEnd, OwnedFd) {
        let (ours, theirs) = skep_keeper_protocol::pair().unwrap();
        let end = KeeperEnd::new(ours).unwrap();
        let swarm = SwarmAvailability::Unable { reason: "a test".to_owned() };
        let setup = ServerSetup { settings: serde_json::json!({}), admin_key: None, swarm, succeeds: false };
        end.send_setup(&setup, &[]).await.unwrap();
        (end, theirs)
    }

    #[tokio::test]
    async fn requests_beyond_the_limit_wait() {
        let (mut end, theirs) = with_setup().await;
        let (server, ..) = ServerEnd::connect(theirs).await.unwrap();

        let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let counted = (Arc::clone(&begun), Arc::clone(&gate));
        let (_uncut, cut) = oneshot::channel();
        tokio::spawn(async move {
            let perform = |_, answerer: Answerer| {
                counted.0.fetch_add(1, Ordering::Relaxed);
                let gate = Arc::clone(&counted.1);
                async move {
                    let _open = gate.acquire_owned().await;
                    answerer.answer(Answer::List { vms: Vec::new() }, &[]).await.unwrap();
                }
            };
            answer_all(&mut end, perform, cut).await;
        });
        let mut asked = JoinSet::new();
        for _ in 0..MAX_CONCURRENT_REQUESTS + 50 {
            let server = server.clone();
            asked.spawn(async move { server.list().await });
        }
        while begun.load(Ordering::Relaxed) < MAX_CONCURRENT_REQUESTS {
            tokio::task::yield_now().await;
        }
        // Without the limit, the other requests would begin during these scheduler turns.
        for _ in 0..20 * MAX_CONCURRENT_REQUESTS {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::Relaxed), MAX_CONCURRENT_REQUESTS);
        gate.add_permits(1);
        while let Some(answer) = asked.join_next().await {
            answer.unwrap().unwrap();
        }
        assert_eq!(begun.load(Ordering::Relaxed), MAX_CONCURRENT_REQUESTS + 50);
    }

    /// The control: the answers fill the socket, whose other end is open, and all requests wait.
    #[tokio::test]
    async fn answers_that_nobody_reads_do_not_keep_the_keeper_from_closing_the_socket() {
        let (mut end, theirs) = with_setup().await;
        rustix::io::ioctl_fionbio(&theirs, true).unwrap();
        let waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        let (uncut, cut) = oneshot::channel();
        let serving = tokio::spawn(async move {
            let perform = |_, answerer: Answerer| {
                counted.fetch_add(1, Ordering::Relaxed);
                let counted = Arc::clone(&counted);
                async move {
                    let _ = answerer.answer(Answer::List { vms: Vec::new() }, &[]).await;
                    counted.fetch_sub(1, Ordering::Relaxed);
                }
            };
            answer_all(&mut end, perform, cut).await;
        });
        while waiting.load(Ordering::Relaxed) < MAX_CONCURRENT_REQUESTS {
            // Refused while the keeper reads nothing.
            let _ = skep_packet::send(&theirs, br#"{"id": 1, "body": {"list": {"after": null}}}"#, &[]);
            tokio::task::yield_now().await;
        }
        assert!(!serving.is_finished());
        drop(uncut);
        serving.await.unwrap();
        // The answers that fit are read first. Requests that the keeper has not read make the end an error.
        rustix::io::ioctl_fionbio(&theirs, false).unwrap();
        let read = move || while matches!(skep_packet::receive(&theirs), Ok(Some(_))) {};
        spawn_blocking(read).await.unwrap();
    }
}
