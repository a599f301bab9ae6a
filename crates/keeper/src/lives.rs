//! The lives of servers: one after the other, and two for as long as one takes the other's place.
//!
//! ```text
//! restart   settings read again ─ new server started ─ it is ready ─▶ the old one ends ─▶ the new one takes over the VMs
//!                    │                    │ it is not
//!                    └─ refused ◀─────────┘ and the old one serves on
//! ```
//! Both accept connections while there are two, so none waits for requests that the old one still answers. Whoever asks for a
//! restart meanwhile, at either of them, gets the outcome of the one that is under way.

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

/// The first pause before a server that died is started again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A server that lived this long had started well.
const WELL_STARTED: Duration = Duration::from_secs(10);
/// How long what a server sent last is still received, once its process has ended. Its socket closes with the process, unless it
/// gave its end to another one.
const LAST_REQUESTS: Duration = Duration::from_secs(1);
/// Requests for one restart. Further ones wait until its outcome is known, and are for the next one then.
const MOST_ASKING: usize = 1024;
/// How long a server may take to be ready: it opens the store, which another one still writes to.
const READY: Duration = Duration::from_secs(60);

/// What servers are started with.
pub(crate) struct Lives<'a> {
    pub(crate) order: &'a KeeperOrder,
    pub(crate) user: User,
    pub(crate) key: AdminKey,
    pub(crate) ability: SwarmAbility,
    pub(crate) listeners: Vec<OwnedFd>,
    pub(crate) vmms: Option<Arc<Vmms>>,
    pub(crate) helpers: Arc<Helpers>,
}

/// A server that runs, and who answers it.
struct Running {
    id: ServerId,
    process: ServerProcess,
    serving: JoinHandle<()>,
    /// Dropped to end the serving.
    cut: oneshot::Sender<()>,
    calls: mpsc::Receiver<Call>,
    configured: Configured,
}

/// One that is ready, and waits for the end of the server before it.
struct Successor {
    running: Running,
    waits: Answerer,
}

/// How one server's life ended.
enum Life {
    /// We were told to stop.
    Stopped(Option<ExitStatus>, Wish),
    /// It ended by itself.
    Died(Option<ExitStatus>),
    /// Another one took its place.
    Succeeded(Box<Running>),
}

/// Why a server is to end now.
enum Turn {
    Ended,
    Stop(Wish),
    Successor(Box<Successor>),
}

impl Lives<'_> {
    /// Keeps a server running until we are told to stop.
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
            // A configuration that it cannot start with: told now, not tried for ever.
            if let (true, false, Some(code)) = (first, well_started, status.and_then(|status| status.code()))
                && code != 0
            {
                return Ok((exit_code(status), Wish::LetThemLive));
            }
            if let Some(before) = before.take().filter(|_| !well_started) {
                tracing::error!("the settings of the last restart are given up: those before it count again");
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

    /// From the start of a server until nothing of it is left, and of its VMs only those that belong to somebody.
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

    /// Until it ended, we are told to stop, or another is ready to take its place.
    async fn until_its_turn(&self, running: &mut Running, stop: &mut Stop) -> Turn {
        loop {
            let first = tokio::select! {
                () = running.process.ended() => return Turn::Ended,
                // An exit closes the socket first; the process and its status follow.
                _ = &mut running.serving => return Turn::Ended,
                wish = stop.asked() => return Turn::Stop(wish),
                Some(call) = running.calls.recv() => match call {
                    Call::Restart(asked) => asked,
                    // It has no other to wait for.
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
            tracing::error!(%error, "{error}; the server serves on");
            let refusal = Failure::from(error);
            asked.into_iter().for_each(|asked| answer_later(asked, Answer::Refused(refusal.clone())));
        }
    }

    /// What becomes of a restart, for all who ask for one until that is known. `Err`: we are told to stop.
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

    /// Starts another server by the settings as they are now, and waits until it is ready. It stands in `half` meanwhile.
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

    /// Ends a server and what it started, and takes its status.
    async fn bury(&self, running: Running) -> Option<ExitStatus> {
        let Running { id, process, mut serving, cut, calls, .. } = running;
        // Nobody answers a call of one that is ended.
        drop(calls);
        process.kill();
        process.ended().await;
        let status = process.status();
        // What it asked last is finished.
        if !serving.is_finished() && timeout(LAST_REQUESTS, &mut serving).await.is_err() {
            tracing::warn!(
                "the server ended, and its socket is open or its last requests take long: it is cut off"
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

    /// Ours stay open: while a server is started again, connections wait and are not refused.
    fn listener_copies(&self) -> Result<Vec<OwnedFd>, Error> {
        let api_for_vms = self.vmms.iter().filter_map(|vmms| Some(vmms.api_listener()?.as_fd()));
        let all = self.listeners.iter().map(AsFd::as_fd).chain(api_for_vms);
        let copies = all.map(|listener| listener.try_clone_to_owned()).collect::<Result<_, _>>();
        copies.map_err(Error::io("listening socket"))
    }
}

impl Running {
    /// What it says first of its own life. `None`: it ended without a word.
    async fn word(&mut self) -> Option<Call> {
        tokio::select! {
            biased;
            call = self.calls.recv() => call,
            // Its last word may still be on its way.
            () = self.process.ended() => self.calls.recv().await,
        }
    }
}

/// The next call of a server that ends, or of the one that takes its place, and what a restart is for each of them.
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

/// Answers without waiting: a server that reads no answers must not hold up its own end. One that went away needs none.
fn answer_later(asked: Answerer, answer: Answer) {
    tokio::spawn(async move {
        let _ = asked.answer(answer, &[]).await;
    });
}

fn exit_code(status: Option<ExitStatus>) -> ExitCode {
    let code = status.and_then(|status| status.code()).unwrap_or(0);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
