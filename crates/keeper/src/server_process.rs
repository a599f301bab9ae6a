//! The server process: the keeper's unprivileged child.

use std::{os::fd::OwnedFd, process::ExitStatus, time::Duration};

use rustix::process::Signal;
use skep_jail::{Confinement, Handles, Jailed, ProcessSpec, Session, oom_score_adj, stage::SELF_EXE};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{Error, KeeperConfig, User, privileges::has_root};

/// A killed process usually exits within milliseconds.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) struct ServerProcess {
    jailed: Jailed,
    ended: AsyncFd<OwnedFd>,
}

impl ServerProcess {
    /// Starts the server with its end of the keeper's socket. The kernel kills it when the calling thread ends, so call
    /// this on the main thread. Blocks for some milliseconds.
    pub(crate) fn start(order: &KeeperConfig, user: &User, socket: OwnedFd) -> Result<Self, Error> {
        let handles = Handles { inherited: vec![socket], ..Handles::default() };
        let jailed = skep_jail::spawn(&order.binary, &server_spec(order, user), handles)?;
        let watched = jailed.pidfd.try_clone().and_then(|pidfd| {
            // SAFETY: the `OwnedFd` is moved in, so the descriptor stays open and unchanged as long as the `AsyncFd`
            // exists.
            let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
            registered.map_err(std::io::Error::from)
        });
        match watched {
            Ok(ended) => Ok(Self { jailed, ended }),
            Err(error) => {
                let _ = jailed.kill();
                let _ = jailed.wait(KILL_TIMEOUT);
                jailed.reap();
                Err(Error::io("pidfd of the server")(error))
            }
        }
    }

    /// Asks the server to finish its requests and exit.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) = self.jailed.signal(signal) {
            tracing::error!(%error, "the server could not be signalled");
        }
    }

    /// Waits until the server has ended. Cancel-safe.
    pub(crate) async fn ended(&self) {
        // After an error the end cannot be awaited: treated as ended, because the caller kills the server next.
        let _ = self.ended.readable().await;
    }

    /// Reaps the server and returns its exit status. Call it after `ended`.
    pub(crate) fn take_status(&self) -> Option<ExitStatus> {
        let _ = self.jailed.wait(KILL_TIMEOUT);
        self.jailed.reap()
    }
}

/// Without supplementary groups: a group such as `docker` is equivalent to root.
fn server_spec(order: &KeeperConfig, user: &User) -> ProcessSpec {
    ProcessSpec {
        program: SELF_EXE.into(),
        arguments: order.server_arguments.clone(),
        environment: order.server_environment.clone(),
        uid: user.uid,
        gid: user.gid,
        groups: Vec::new(),
        oom_score_adj: oom_score_adj::SERVER,
        confinement: if has_root() { Confinement::User } else { Confinement::SameUser(Session::Caller) },
    }
}
