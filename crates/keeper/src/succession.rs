//! Supervision of the server process: start, restart after a crash, and replacement by a successor on request.
//!
//! ```text
//! restart   settings read again ─ new server started ─ it is ready ─▶ the old one ends ─▶ the new one takes over the VMs
//!                    │                    │ it is not
//!                    └─ refused ◀─────────┘ and the old one keeps running
//! ```
//! While two servers run, both accept connections, so that no connection waits for requests that the old server still
//! answers. Restart requests that arrive at either server during a restart get the outcome of that restart.

use std::{
    os::fd::{AsFd, OwnedFd},
    pin::pin,
    process::{ExitCode, ExitStatus},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use skep_api::Failure;
use skep_keeper_protocol::{AdminKey, Answer, Answerer, KeeperEnd, ServerSetup, SwarmAvailability};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

use crate::{
    Error, KeeperConfig, ServerConfig, User,
    helpers::{Helpers, ServerId},
    listeners::Listeners,
    server_process::ServerProcess,
    serving::{LifecycleCall, ServerContext, serve},
    stop_signal::{StopSignals, VmsAtStop},
    vmms::Vmms,
};

/// Back-off before a crashed server is restarted. Doubles with each crash up to `MAX_BACKOFF`.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// A server that ran this long counts as successfully started.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// How long requests of a server are still served once its process has ended. The socket closes with the process,
/// unless another process holds a copy of it.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Requests that share the outcome of one restart. Further ones wait for that outcome and count for the next restart.
const MAX_RESTART_REQUESTERS: usize = 1024;
/// How long a server may take to become ready. It opens the store while the old server still writes to it.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts servers and supervises them until the keeper stops.
pub(crate) struct ServerSupervisor<'a> {
    pub(crate) order: &'a KeeperConfig,
    pub(crate) user: User,
    pub(crate) key: AdminKey,
    pub(crate) ability: SwarmAvailability,
    pub(crate) listeners: Listeners,
    pub(crate) vmms: Option<Arc<Vmms>>,
    pub(crate) helpers: Arc<Helpers>,
}

/// A running server process and the task that serves its requests.
struct RunningServer {
    id: ServerId,
    process: ServerProcess,
    serving: JoinHandle<()>,
    /// Dropping this ends the `serving` task.
    cancel: oneshot::Sender<()>,
    calls: mpsc::Receiver<LifecycleCall>,
    server_config: ServerConfig,
}

/// A server that is ready and waits for its predecessor to end.
struct Successor {
    running: RunningServer,
    ready_answerer: Answerer,
}

/// How a server ended.
enum ServerExit {
    /// The keeper was asked to stop.
    Stopped(Option<ExitStatus>, VmsAtStop),
    /// The server exited or crashed by itself.
    Exited(Option<ExitStatus>),
    /// A successor replaced it.
    Replaced(Box<RunningServer>),
}

/// Why the supervisor stops waiting for a server.
enum WakeReason {
    Ended,
    Stop(VmsAtStop),
    Successor(Box<Successor>),
}

impl ServerSupervisor<'_> {
    /// Keeps a server running until the keeper is asked to stop.
    pub(crate) async fn until_stopped(&self, stop: &mut StopSignals) -> Result<(ExitCode, VmsAtStop), Error> {
        let mut pause = INITIAL_BACKOFF;
        let mut first = true;
        let mut configured = self.order.server_config.clone();
        let mut before = None;
        let mut running = self.start(configured.clone(), false)?;
        loop {
            let begun = Instant::now();
            let status = match self.supervise_one(running, stop).await? {
                ServerExit::Stopped(status, wish) => return Ok((exit_code(status), wish)),
                ServerExit::Exited(status) => status,
                ServerExit::Replaced(next) => {
                    before = Some(std::mem::replace(&mut configured, next.server_config.clone()));
                    (running, first) = (*next, false);
                    continue;
                }
            };
            let well_started = begun.elapsed() >= STABLE_AFTER;
            // The first server exits with an error: most likely the configuration is invalid, so retrying would not
            // help.
            if let (true, false, Some(code)) = (first, well_started, status.and_then(|status| status.code()))
                && code != 0
            {
                return Ok((exit_code(status), VmsAtStop::Keep));
            }
            if let Some(before) = before.take().filter(|_| !well_started) {
                tracing::error!("the settings of the last restart are dropped: the previous ones apply");
                configured = before;
            }
            first = false;
            pause = if well_started { INITIAL_BACKOFF } else { (pause * 2).min(MAX_BACKOFF) };
            tracing::error!(?status, "the server died ({status:?}) and is started again in {pause:?}");
            tokio::select! {
                () = sleep(pause) => {}
                wish = stop.received() => return Ok((ExitCode::SUCCESS, wish)),
            }
            running = self.start(configured.clone(), false)?;
        }
    }

    fn start(&self, configured: ServerConfig, succeeds: bool) -> Result<RunningServer, Error> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let (ours, theirs) = skep_keeper_protocol::pair()?;
        let end = KeeperEnd::new(ours)?;
        let listeners = self.listener_copies()?;
        let id = ServerId(STARTED.fetch_add(1, Ordering::Relaxed));
        let process = ServerProcess::start(self.order, &self.user, theirs)?;
        let (sender, calls) = mpsc::channel(1);
        let context = ServerContext {
            server: id,
            server_config: configured.clone(),
            helpers: Arc::clone(&self.helpers),
            calls: sender,
            vmms: self.vmms.clone(),
        };
        let setup = ServerSetup {
            settings: configured.settings.clone(),
            admin_key: Some(self.key.clone()),
            swarm: self.ability.clone(),
            succeeds,
        };
        let (cut, cuts) = oneshot::channel();
        let serving = tokio::spawn(serve(end, setup, listeners, context, cuts));
        Ok(RunningServer { id, process, serving, cancel: cut, calls, server_config: configured })
    }

    /// Supervises one server until it and its helpers have ended and its uncommitted VMs are removed.
    async fn supervise_one(
        &self,
        mut running: RunningServer,
        stop: &mut StopSignals,
    ) -> Result<ServerExit, Error> {
        let turn = self.wait_for_turn(&mut running, stop).await;
        let (mut stopped, mut successor) = match turn {
            WakeReason::Ended => (None, None),
            WakeReason::Stop(wish) => (Some(wish), None),
            WakeReason::Successor(successor) => (None, Some(successor)),
        };
        if stopped.is_some() || successor.is_some() {
            running.process.terminate();
        }
        let mut grace = pin!(sleep(self.order.grace));
        let mut next = successor.as_mut().map(|successor| &mut successor.running.calls);
        loop {
            let (call, outcome) = tokio::select! {
                () = running.process.ended() => break,
                () = &mut grace => break tracing::warn!("the server takes too long to end and is killed"),
                wish = stop.received() => {
                    tracing::warn!("asked to stop while the server was ending: it is killed");
                    break stopped = stopped.max(Some(wish));
                }
                Some(call) = next_lifecycle_call(&mut running.calls, next.as_deref_mut()), if next.is_some() => call,
            };
            if let LifecycleCall::Restart(asked) = call {
                spawn_answer(asked, outcome);
            }
        }
        let status = self.terminate(running).await;
        if let Some(successor) = successor {
            if stopped.is_none() {
                let Successor { running, ready_answerer: waits } = *successor;
                self.end_uncommitted_vms(false).await;
                spawn_answer(waits, Answer::Alone);
                return Ok(ServerExit::Replaced(Box::new(running)));
            }
            self.terminate(successor.running).await;
        }
        self.end_uncommitted_vms(stopped == Some(VmsAtStop::End)).await;
        Ok(stopped.map_or(ServerExit::Exited(status), |wish| ServerExit::Stopped(status, wish)))
    }

    /// Waits until the server ended, the keeper is asked to stop, or a successor is ready.
    async fn wait_for_turn(&self, running: &mut RunningServer, stop: &mut StopSignals) -> WakeReason {
        loop {
            let first = tokio::select! {
                () = running.process.ended() => return WakeReason::Ended,
                // An exit closes the socket first; the exit status follows.
                _ = &mut running.serving => return WakeReason::Ended,
                wish = stop.received() => return WakeReason::Stop(wish),
                Some(call) = running.calls.recv() => match call {
                    LifecycleCall::Restart(asked) => asked,
                    // Only a successor sends these, and this server has no predecessor.
                    LifecycleCall::Ready(_) | LifecycleCall::Unable(_) => continue,
                },
            };
            let (mut requesters, mut successor) = (vec![first], None);
            let made = self.start_successor_for_all(&mut successor, &mut requesters, running, stop).await;
            let error = match (made, successor.take()) {
                (Err(wish), half) => {
                    self.terminate_if_any(half).await;
                    return WakeReason::Stop(wish);
                }
                (Ok(Ok(waits)), Some(running)) => {
                    tracing::info!("another server is ready and takes the place of this one");
                    requesters.into_iter().for_each(|asked| spawn_answer(asked, Answer::Restarting));
                    return WakeReason::Successor(Box::new(Successor { running, ready_answerer: waits }));
                }
                (Ok(Ok(_)), None) => Error::RestartFailed("the new server ended".to_owned()),
                (Ok(Err(error)), half) => {
                    self.terminate_if_any(half).await;
                    error
                }
            };
            tracing::error!(%error, "{error}; the running server stays");
            let refusal = Failure::from(error);
            requesters.into_iter().for_each(|asked| spawn_answer(asked, Answer::Refused(refusal.clone())));
        }
    }

    /// Starts a successor and collects further restart requests meanwhile, which share the outcome. `Err`: the keeper
    /// is asked to stop.
    async fn start_successor_for_all(
        &self,
        successor: &mut Option<RunningServer>,
        requesters: &mut Vec<Answerer>,
        running: &mut RunningServer,
        stop: &mut StopSignals,
    ) -> Result<Result<Answerer, Error>, VmsAtStop> {
        let mut made = pin!(self.start_successor(successor));
        loop {
            tokio::select! {
                made = &mut made => return Ok(made),
                () = running.process.ended() => {
                    return Ok(Err(Error::RestartFailed("the server ended meanwhile".to_owned())));
                }
                wish = stop.received() => return Err(wish),
                Some(call) = running.calls.recv(), if requesters.len() < MAX_RESTART_REQUESTERS => {
                    if let LifecycleCall::Restart(also) = call {
                        requesters.push(also);
                    }
                }
            }
        }
    }

    /// Starts a successor with the current settings and waits until it is ready. `successor` holds it meanwhile, so
    /// that the caller can terminate it.
    async fn start_successor(&self, successor: &mut Option<RunningServer>) -> Result<Answerer, Error> {
        let reread = Arc::clone(&self.order.read_server_config);
        let configured = spawn_blocking(move || reread()).await;
        let configured = configured.map_err(|error| Error::RestartFailed(error.to_string()))?;
        let next = successor.insert(self.start(configured.map_err(Error::RestartFailed)?, true)?);
        let late = || {
            Error::RestartFailed(format!("the new server was not ready within {} s", READY_TIMEOUT.as_secs()))
        };
        let call = timeout(READY_TIMEOUT, next.first_call()).await.map_err(|_| late())?;
        match call {
            Some(LifecycleCall::Ready(waits)) => Ok(waits),
            Some(LifecycleCall::Unable(reason)) => Err(Error::RestartFailed(reason)),
            Some(LifecycleCall::Restart(_)) | None => Err(Error::RestartFailed(
                "the new server ended before it was ready; the log says why".to_owned(),
            )),
        }
    }

    async fn terminate_if_any(&self, half: Option<RunningServer>) {
        if let Some(running) = half {
            self.terminate(running).await;
        }
    }

    /// Kills a server and its helpers, and returns its exit status.
    async fn terminate(&self, running: RunningServer) -> Option<ExitStatus> {
        let RunningServer { id, process, mut serving, cancel: cut, calls, .. } = running;
        // Lifecycle calls of this server are not answered any more.
        drop(calls);
        process.kill();
        process.ended().await;
        let status = process.take_status();
        // Requests that it sent before its end are completed.
        if !serving.is_finished() && timeout(DRAIN_TIMEOUT, &mut serving).await.is_err() {
            tracing::warn!(
                "the server ended, but its socket is open or its last requests take long; it is closed"
            );
            drop(cut);
            let _ = serving.await;
        }
        let helpers = Arc::clone(&self.helpers);
        let _ = spawn_blocking(move || helpers.end_all_of(id)).await;
        status
    }

    async fn end_uncommitted_vms(&self, all: bool) {
        if let Some(vmms) = &self.vmms {
            vmms.drop_all_captures();
            vmms.end_all_reservations().await;
            vmms.end_matching(|belongings| all || !belongings.committed()).await;
        }
    }

    /// Duplicates of the listening sockets. The keeper's own stay open, so that connections wait during a restart and
    /// are not refused.
    fn listener_copies(&self) -> Result<Vec<OwnedFd>, Error> {
        let api_for_vms = self.vmms.iter().filter_map(|vmms| Some(vmms.api_listener()?.as_fd()));
        let all = self.listeners.iter().chain(api_for_vms);
        let copies = all.map(|listener| listener.try_clone_to_owned()).collect::<Result<_, _>>();
        copies.map_err(Error::io("listening socket"))
    }
}

impl RunningServer {
    /// The first lifecycle call of this server. `None` if it ended without sending one.
    async fn first_call(&mut self) -> Option<LifecycleCall> {
        tokio::select! {
            biased;
            call = self.calls.recv() => call,
            // A call may still be in the channel.
            () = self.process.ended() => self.calls.recv().await,
        }
    }
}

/// The next call of a server that is ending, or of its successor, with the answer that a restart request gets there.
async fn next_lifecycle_call(
    ending: &mut mpsc::Receiver<LifecycleCall>,
    next: Option<&mut mpsc::Receiver<LifecycleCall>>,
) -> Option<(LifecycleCall, Answer)> {
    let next = async { next?.recv().await };
    tokio::select! {
        Some(call) = ending.recv() => Some((call, Answer::Restarting)),
        Some(call) = next => Some((call, Answer::Restarted)),
        else => None,
    }
}

/// Answers in a task of its own, so that a server that reads no answers cannot delay its own end. Send errors are
/// ignored: the server is gone then.
fn spawn_answer(asked: Answerer, answer: Answer) {
    tokio::spawn(async move {
        let _ = asked.answer(answer, &[]).await;
    });
}

fn exit_code(status: Option<ExitStatus>) -> ExitCode {
    let code = status.and_then(|status| status.code()).unwrap_or(0);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
