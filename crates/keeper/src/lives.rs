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
use skep_keeper_protocol::{AdminKey, Answer, Answerer, KeeperEnd, SwarmAbility, Welcome};
use tokio::{
    sync::{mpsc, oneshot},
    task::{JoinHandle, spawn_blocking},
    time::{sleep, timeout},
};

use crate::{
    Configured, Error, KeeperOrder, User,
    helpers::{Helpers, ServerId},
    server_process::ServerProcess,
    serving::{Call, Desk, serve},
    stop::{Stop, Wish},
    vmms::Vmms,
};

/// Back-off before a crashed server is restarted. Doubles with each crash up to `MAX_BACKOFF`.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A server that ran this long counts as successfully started.
const WELL_STARTED: Duration = Duration::from_secs(10);
/// How long requests of a server are still served once its process has ended. The socket closes with the process,
/// unless another process holds a copy of it.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
/// Requests that share the outcome of one restart. Further ones wait for that outcome and count for the next restart.
const MOST_ASKING: usize = 1024;
/// How long a server may take to become ready. It opens the store while the old server still writes to it.
const READY: Duration = Duration::from_secs(60);

/// Starts servers and supervises them until the keeper stops.
pub(crate) struct Lives<'a> {
    pub(crate) order: &'a KeeperOrder,
    pub(crate) user: User,
    pub(crate) key: AdminKey,
    pub(crate) ability: SwarmAbility,
    pub(crate) listeners: Vec<OwnedFd>,
    pub(crate) vmms: Option<Arc<Vmms>>,
    pub(crate) helpers: Arc<Helpers>,
}

/// A running server process and the task that serves its requests.
struct Running {
    id: ServerId,
    process: ServerProcess,
    serving: JoinHandle<()>,
    /// Dropping this ends the `serving` task.
    cut: oneshot::Sender<()>,
    calls: mpsc::Receiver<Call>,
    configured: Configured,
}

/// A server that is ready and waits for its predecessor to end.
struct Successor {
    running: Running,
    waits: Answerer,
}

/// How a server ended.
enum Life {
    /// The keeper was asked to stop.
    Stopped(Option<ExitStatus>, Wish),
    /// The server exited or crashed by itself.
    Died(Option<ExitStatus>),
    /// A successor replaced it.
    Succeeded(Box<Running>),
}

/// Why the supervisor stops waiting for a server.
enum Turn {
    Ended,
    Stop(Wish),
    Successor(Box<Successor>),
}

impl Lives<'_> {
    /// Keeps a server running until the keeper is asked to stop.
    pub(crate) async fn until_stopped(&self, stop: &mut Stop) -> Result<(ExitCode, Wish), Error> {
        let mut pause = FIRST_PAUSE;
        let mut first = true;
        let mut configured = self.order.configured.clone();
        let mut before = None;
        let mut running = self.start(configured.clone(), false)?;
        loop {
            let begun = Instant::now();
            let status = match self.one_life(running, stop).await? {
                Life::Stopped(status, wish) => return Ok((exit_code(status), wish)),
                Life::Died(status) => status,
                Life::Succeeded(next) => {
                    before = Some(std::mem::replace(&mut configured, next.configured.clone()));
                    (running, first) = (*next, false);
                    continue;
                }
            };
            let well_started = begun.elapsed() >= WELL_STARTED;
            // The first server exits with an error: most likely the configuration is invalid, so retrying would not
            // help.
            if let (true, false, Some(code)) = (first, well_started, status.and_then(|status| status.code()))
                && code != 0
            {
                return Ok((exit_code(status), Wish::LetThemLive));
            }
            if let Some(before) = before.take().filter(|_| !well_started) {
                tracing::error!("the settings of the last restart are dropped: the previous ones apply");
                configured = before;
            }
            first = false;
            pause = if well_started { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            tracing::error!(?status, "the server died ({status:?}) and is started again in {pause:?}");
            tokio::select! {
                () = sleep(pause) => {}
                wish = stop.asked() => return Ok((ExitCode::SUCCESS, wish)),
            }
            running = self.start(configured.clone(), false)?;
        }
    }

    fn start(&self, configured: Configured, succeeds: bool) -> Result<Running, Error> {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let (ours, theirs) = skep_keeper_protocol::pair()?;
        let end = KeeperEnd::new(ours)?;
        let listeners = self.listener_copies()?;
        let id = ServerId(STARTED.fetch_add(1, Ordering::Relaxed));
        let process = ServerProcess::start(self.order, &self.user, theirs)?;
        let (sender, calls) = mpsc::channel(1);
        let desk = Desk {
            server: id,
            configured: configured.clone(),
            helpers: Arc::clone(&self.helpers),
            calls: sender,
            vmms: self.vmms.clone(),
        };
        let welcome = Welcome {
            settings: configured.settings.clone(),
            admin_key: Some(self.key.clone()),
            swarm: self.ability.clone(),
            succeeds,
        };
        let (cut, cuts) = oneshot::channel();
        let serving = tokio::spawn(serve(end, welcome, listeners, desk, cuts));
        Ok(Running { id, process, serving, cut, calls, configured })
    }

    /// Supervises one server until it and its helpers have ended and its uncommitted VMs are removed.
    async fn one_life(&self, mut running: Running, stop: &mut Stop) -> Result<Life, Error> {
        let turn = self.until_its_turn(&mut running, stop).await;
        let (mut stopped, mut successor) = match turn {
            Turn::Ended => (None, None),
            Turn::Stop(wish) => (Some(wish), None),
            Turn::Successor(successor) => (None, Some(successor)),
        };
        if stopped.is_some() || successor.is_some() {
            running.process.ask_to_end();
        }
        let mut grace = pin!(sleep(self.order.grace));
        let mut next = successor.as_mut().map(|successor| &mut successor.running.calls);
        loop {
            let (call, outcome) = tokio::select! {
                () = running.process.ended() => break,
                () = &mut grace => break tracing::warn!("the server takes too long to end and is killed"),
                wish = stop.asked() => {
                    tracing::warn!("asked to stop while the server was ending: it is killed");
                    break stopped = stopped.max(Some(wish));
                }
                Some(call) = next_call(&mut running.calls, next.as_deref_mut()), if next.is_some() => call,
            };
            if let Call::Restart(asked) = call {
                answer_later(asked, outcome);
            }
        }
        let status = self.bury(running).await;
        if let Some(successor) = successor {
            if stopped.is_none() {
                let Successor { running, waits } = *successor;
                self.end_vms_of_nobody(false).await;
                answer_later(waits, Answer::Alone);
                return Ok(Life::Succeeded(Box::new(running)));
            }
            self.bury(successor.running).await;
        }
        self.end_vms_of_nobody(stopped == Some(Wish::EndThem)).await;
        Ok(stopped.map_or(Life::Died(status), |wish| Life::Stopped(status, wish)))
    }

    /// Waits until the server ended, the keeper is asked to stop, or a successor is ready.
    async fn until_its_turn(&self, running: &mut Running, stop: &mut Stop) -> Turn {
        loop {
            let first = tokio::select! {
                () = running.process.ended() => return Turn::Ended,
                // An exit closes the socket first; the exit status follows.
                _ = &mut running.serving => return Turn::Ended,
                wish = stop.asked() => return Turn::Stop(wish),
                Some(call) = running.calls.recv() => match call {
                    Call::Restart(asked) => asked,
                    // Only a successor sends these, and this server has no predecessor.
                    Call::Ready(_) | Call::Unable(_) => continue,
                },
            };
            let (mut asked, mut half) = (vec![first], None);
            let made = self.succeed_while_more_ask(&mut half, &mut asked, running, stop).await;
            let error = match (made, half.take()) {
                (Err(wish), half) => {
                    self.bury_if_any(half).await;
                    return Turn::Stop(wish);
                }
                (Ok(Ok(waits)), Some(running)) => {
                    tracing::info!("another server is ready and takes the place of this one");
                    asked.into_iter().for_each(|asked| answer_later(asked, Answer::Restarting));
                    return Turn::Successor(Box::new(Successor { running, waits }));
                }
                (Ok(Ok(_)), None) => Error::NoRestart("the new server ended".to_owned()),
                (Ok(Err(error)), half) => {
                    self.bury_if_any(half).await;
                    error
                }
            };
            tracing::error!(%error, "{error}; the running server stays");
            let refusal = Failure::from(error);
            asked.into_iter().for_each(|asked| answer_later(asked, Answer::Refused(refusal.clone())));
        }
    }

    /// Starts a successor and collects further restart requests meanwhile, which share the outcome. `Err`: the keeper
    /// is asked to stop.
    async fn succeed_while_more_ask(
        &self,
        half: &mut Option<Running>,
        asked: &mut Vec<Answerer>,
        running: &mut Running,
        stop: &mut Stop,
    ) -> Result<Result<Answerer, Error>, Wish> {
        let mut made = pin!(self.succeed(half));
        loop {
            tokio::select! {
                made = &mut made => return Ok(made),
                () = running.process.ended() => {
                    return Ok(Err(Error::NoRestart("the server ended meanwhile".to_owned())));
                }
                wish = stop.asked() => return Err(wish),
                Some(call) = running.calls.recv(), if asked.len() < MOST_ASKING => {
                    if let Call::Restart(also) = call {
                        asked.push(also);
                    }
                }
            }
        }
    }

    /// Starts a successor with the current settings and waits until it is ready. `successor` holds it meanwhile, so
    /// that the caller can terminate it.
    async fn succeed(&self, half: &mut Option<Running>) -> Result<Answerer, Error> {
        let reread = Arc::clone(&self.order.reread);
        let configured = spawn_blocking(move || reread()).await;
        let configured = configured.map_err(|error| Error::NoRestart(error.to_string()))?;
        let next = half.insert(self.start(configured.map_err(Error::NoRestart)?, true)?);
        let late = || Error::NoRestart(format!("the new server was not ready within {} s", READY.as_secs()));
        let call = timeout(READY, next.word()).await.map_err(|_| late())?;
        match call {
            Some(Call::Ready(waits)) => Ok(waits),
            Some(Call::Unable(reason)) => Err(Error::NoRestart(reason)),
            Some(Call::Restart(_)) | None => {
                Err(Error::NoRestart("the new server ended before it was ready; the log says why".to_owned()))
            }
        }
    }

    async fn bury_if_any(&self, half: Option<Running>) {
        if let Some(running) = half {
            self.bury(running).await;
        }
    }

    /// Kills a server and its helpers, and returns its exit status.
    async fn bury(&self, running: Running) -> Option<ExitStatus> {
        let Running { id, process, mut serving, cut, calls, .. } = running;
        // Lifecycle calls of this server are not answered any more.
        drop(calls);
        process.kill();
        process.ended().await;
        let status = process.status();
        // Requests that it sent before its end are completed.
        if !serving.is_finished() && timeout(LAST_REQUESTS, &mut serving).await.is_err() {
            tracing::warn!(
                "the server ended, but its socket is open or its last requests take long; it is closed"
            );
            drop(cut);
            let _ = serving.await;
        }
        let helpers = Arc::clone(&self.helpers);
        let _ = spawn_blocking(move || helpers.end_those_of(id)).await;
        status
    }

    async fn end_vms_of_nobody(&self, all: bool) {
        if let Some(vmms) = &self.vmms {
            vmms.end_those(|belongings| all || !belongings.committed()).await;
        }
    }

    /// Duplicates of the listening sockets. The keeper's own stay open, so that connections wait during a restart and
    /// are not refused.
    fn listener_copies(&self) -> Result<Vec<OwnedFd>, Error> {
        let api_for_vms = self.vmms.iter().filter_map(|vmms| Some(vmms.api_listener()?.as_fd()));
        let all = self.listeners.iter().map(AsFd::as_fd).chain(api_for_vms);
        let copies = all.map(|listener| listener.try_clone_to_owned()).collect::<Result<_, _>>();
        copies.map_err(Error::io("listening socket"))
    }
}

impl Running {
    /// The first lifecycle call of this server. `None` if it ended without sending one.
    async fn word(&mut self) -> Option<Call> {
        tokio::select! {
            biased;
            call = self.calls.recv() => call,
            // A call may still be in the channel.
            () = self.process.ended() => self.calls.recv().await,
        }
    }
}

/// The next call of a server that is ending, or of its successor, with the answer that a restart request gets there.
async fn next_call(
    ending: &mut mpsc::Receiver<Call>,
    next: Option<&mut mpsc::Receiver<Call>>,
) -> Option<(Call, Answer)> {
    let next = async { next?.recv().await };
    tokio::select! {
        Some(call) = ending.recv() => Some((call, Answer::Restarting)),
        Some(call) = next => Some((call, Answer::Restarted)),
        else => None,
    }
}

/// Answers in a task of its own, so that a server that reads no answers cannot delay its own end. Send errors are
/// ignored: the server is gone then.
fn answer_later(asked: Answerer, answer: Answer) {
    tokio::spawn(async move {
        let _ = asked.answer(answer, &[]).await;
    });
}

fn exit_code(status: Option<ExitStatus>) -> ExitCode {
    let code = status.and_then(|status| status.code()).unwrap_or(0);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
