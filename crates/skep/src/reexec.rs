//! Restart of a server without a keeper: after the requests in progress, the process executes the program again. Its
//! listening sockets stay open, so new connections wait and none is refused.

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
    reload::{needs_keeper_restart, reload_settings},
    service::{Listeners, RestartHandle, RestartState},
    settings::Settings,
    tls::{PairReader, Tls},
};

/// Environment variable with the numbers of the inherited sockets, for the new program.
const SOCKETS: &str = "SKEP_INTERNAL_SOCKETS";

/// The listening sockets inherited from the program that this process ran before.
pub(crate) fn inherited_listeners(settings: &Settings) -> Option<Listeners> {
    let numbers = env::var(SOCKETS).ok()?;
    let mut numbers = numbers.split(',').map(str::parse::<RawFd>);
    let api = adopt_socket(numbers.next()?.ok()?, settings.listen)?;
    let metrics = match (settings.metrics_listen, numbers.next()) {
        (Some(address), Some(number)) => Some(adopt_socket(number.ok()?, address)?),
        _ => None,
    };
    Some(Listeners { api, vms: None, metrics })
}

/// Takes over an inherited socket; `None` if it is not bound to `wanted`. A wanted port of 0 matches any port.
fn adopt_socket(number: RawFd, wanted: SocketAddr) -> Option<TcpListener> {
    // SAFETY: no object in this process owns an inherited number; it is only borrowed for getsockname.
    let looked_at = unsafe { BorrowedFd::borrow_raw(number) };
    let bound = SocketAddr::try_from(getsockname(looked_at).ok()?).ok()?;
    let is_it = bound.ip() == wanted.ip() && (wanted.port() == 0 || bound.port() == wanted.port());
    // SAFETY: the line above has shown that it is an open socket, and no other object in this process owns it.
    let taken = is_it.then(|| unsafe { OwnedFd::from_raw_fd(number) })?;
    rustix::io::fcntl_setfd(&taken, FdFlags::CLOEXEC).ok()?;
    Some(taken.into())
}

/// Duplicates of the listening sockets, which stay open when the server closes its own.
pub(crate) struct HeldListeners(Vec<TcpListener>);

impl HeldListeners {
    pub(crate) fn of(listeners: &Listeners) -> anyhow::Result<Self> {
        let all = [Some(&listeners.api), listeners.metrics.as_ref()].into_iter().flatten();
        let kept = all.map(TcpListener::try_clone).collect::<Result<_, _>>();
        Ok(Self(kept.context("the listening sockets cannot be held")?))
    }

    /// Executes the program again with the same arguments. Returns only on failure.
    pub(crate) fn reexec(self) -> anyhow::Error {
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

/// Restarts that callers request.
pub(crate) struct Restarts {
    before: Settings,
    state: Arc<watch::Sender<RestartState>>,
}

impl Restarts {
    pub(crate) fn of(settings: &Settings) -> Self {
        Self { before: settings.clone(), state: Arc::default() }
    }

    /// The handle by which routes request a restart.
    pub(crate) fn handle(&self) -> RestartHandle {
        let (before, state) = (self.before.clone(), Arc::clone(&self.state));
        let restart: Restart = Arc::new(move || {
            let (before, state) = (before.clone(), Arc::clone(&state));
            Box::pin(async move {
                check(&before).await.map_err(|why| {
                    let message = format!("this server cannot be started again: {why}");
                    Failure::new(ErrorCode::RestartRefused, message)
                })?;
                state.send_modify(|succession| succession.granted = true);
                Ok(())
            })
        });
        RestartHandle { restart, succession: self.state.subscribe() }
    }

    /// Waits until a restart is requested.
    pub(crate) fn requested(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut succession = self.state.subscribe();
        async move {
            if succession.wait_for(|succession| succession.granted).await.is_err() {
                // The sender is gone, so no request can arrive.
                std::future::pending().await
            }
        }
    }

    pub(crate) fn is_requested(&self) -> bool {
        self.state.borrow().granted
    }
}

/// Checks that the current settings can start a server. After the exec, an error could no longer be reported to the
/// caller.
async fn check(before: &Settings) -> Result<(), String> {
    let describe = |error: anyhow::Error| output::one_line(&error);
    let now = tokio::task::spawn_blocking(reload_settings)
        .await
        .map_err(|error| error.to_string())?
        .map_err(describe)?;
    if let Some(why) = needs_keeper_restart(before, &now) {
        return Err(why);
    }
    if let Some(root) = now.root.iter().find(|root| !root.is_dir()) {
        return Err(format!(
            "the root {} is not an existing folder; create it, or name another",
            root.display()
        ));
    }
    Tls::of(&now, PairReader::ThisProcess).await.map(drop).map_err(describe)
}
