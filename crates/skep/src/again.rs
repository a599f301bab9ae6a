//! A restart without a keeper: the process becomes a new server once it has answered what is under way. Its sockets stay
//! open, so connections wait meanwhile and none is refused.

use std::{
    env,
    net::{SocketAddr, TcpListener},
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    process::Command,
    sync::Arc,
};

use anyhow::Context;
use rustix::{io::FdFlags, net::getsockname};
use skep_api::{ErrorCode, Failure};
use skep_server::Restart;
use tokio::sync::watch;

use crate::{
    output,
    reread::{read_again, takes_more},
    service::{Listeners, Succession, SuccessorKnown},
    settings::Settings,
    tls::{Holder, Tls},
};

/// Where the new server finds the numbers of its sockets.
const SOCKETS: &str = "SKEP_INTERNAL_SOCKETS";

/// The sockets of a server that this process was before.
pub(crate) fn inherited(settings: &Settings) -> Option<Listeners> {
    let numbers = env::var(SOCKETS).ok()?;
    let mut numbers = numbers.split(',').map(str::parse::<RawFd>);
    let api = socket(numbers.next()?.ok()?, settings.listen)?;
    let metrics = match (settings.metrics_listen, numbers.next()) {
        (Some(address), Some(number)) => Some(socket(number.ok()?, address)?),
        _ => None,
    };
    Some(Listeners { api, vms: None, metrics })
}

/// `None` where this number is no socket at this address. A port of 0 was whichever.
fn socket(number: RawFd, wanted: SocketAddr) -> Option<TcpListener> {
    // SAFETY: nobody in this process owns a number that was inherited; it is only looked at.
    let looked_at = unsafe { BorrowedFd::borrow_raw(number) };
    let bound = SocketAddr::try_from(getsockname(looked_at).ok()?).ok()?;
    let is_it = bound.ip() == wanted.ip() && (wanted.port() == 0 || bound.port() == wanted.port());
    // SAFETY: it is open and a socket, as was just seen, and nobody else in this process knows of it.
    let taken = is_it.then(|| unsafe { OwnedFd::from_raw_fd(number) })?;
    rustix::io::fcntl_setfd(&taken, FdFlags::CLOEXEC).ok()?;
    Some(taken.into())
}

/// The sockets, held open beside those that the server takes connections by.
pub(crate) struct Kept(Vec<TcpListener>);

impl Kept {
    pub(crate) fn of(listeners: &Listeners) -> anyhow::Result<Self> {
        let all = [Some(&listeners.api), listeners.metrics.as_ref()].into_iter().flatten();
        let kept = all.map(TcpListener::try_clone).collect::<Result<_, _>>();
        Ok(Self(kept.context("the listening sockets cannot be held")?))
    }

    /// Becomes a new server. Returns only where that fails.
    pub(crate) fn start_again(self) -> anyhow::Error {
        for socket in &self.0 {
            if let Err(error) = rustix::io::fcntl_setfd(socket, FdFlags::empty()) {
                return anyhow::Error::new(error).context("the listening sockets cannot be handed on");
            }
        }
        let numbers: Vec<String> = self.0.iter().map(|socket| socket.as_raw_fd().to_string()).collect();
        let mut command = Command::new("/proc/self/exe");
        command.arg0("skep").args(env::args_os().skip(1)).env(SOCKETS, numbers.join(","));
        anyhow::Error::new(command.exec()).context("the server could not be started again")
    }
}

/// Restarts that callers ask for.
pub(crate) struct Restarts {
    before: Settings,
    told: Arc<watch::Sender<Succession>>,
}

impl Restarts {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self { before: settings.clone(), told: Arc::default() }
    }

    /// How one is asked for.
    pub(crate) fn known(&self) -> SuccessorKnown {
        let (before, told) = (self.before.clone(), Arc::clone(&self.told));
        let restart: Restart = Arc::new(move || {
            let (before, told) = (before.clone(), Arc::clone(&told));
            Box::pin(async move {
                check(&before).await.map_err(|why| {
                    let message = format!("this server cannot be started again: {why}");
                    Failure::new(ErrorCode::RestartRefused, message)
                })?;
                told.send_modify(|succession| succession.granted = true);
                Ok(())
            })
        });
        SuccessorKnown { restart, succession: self.told.subscribe() }
    }

    /// Waits until one is asked for.
    pub(crate) fn asked(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut succession = self.told.subscribe();
        async move {
            if succession.wait_for(|succession| succession.granted).await.is_err() {
                // Nobody can ask any more.
                std::future::pending().await
            }
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.told.borrow().granted
    }
}

/// Whether the settings as they are now would start a server. Afterwards it is too late to find out.
async fn check(before: &Settings) -> Result<(), String> {
    let told = |error: anyhow::Error| output::one_line(&error);
    let now =
        tokio::task::spawn_blocking(read_again).await.map_err(|error| error.to_string())?.map_err(told)?;
    if let Some(why) = takes_more(before, &now) {
        return Err(why);
    }
    if let Some(root) = now.root.iter().find(|root| !root.is_dir()) {
        return Err(format!(
            "the root {} is not an existing folder; create it, or name another",
            root.display()
        ));
    }
    Tls::of(&now, Holder::Us).await.map(drop).map_err(told)
}
