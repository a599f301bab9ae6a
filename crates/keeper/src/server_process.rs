//! The server: our child, without privileges.

use std::{os::fd::OwnedFd, process::ExitStatus, time::Duration};

use rustix::process::Signal;
use skep_jail::{Confinement, Handles, Jailed, Order, stage::OWN_PROGRAM};
use tokio::io::{Interest, unix::AsyncFd};

use crate::{Error, KeeperOrder, User};

/// A killed process is gone within milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// The server's process.
pub(crate) struct ServerProcess {
    jailed: Jailed,
    ended: AsyncFd<OwnedFd>,
}

impl ServerProcess {
    /// Starts it with its end of the keeper's socket. It is killed when this thread ends, so this must be the main one.
    /// Blocks for some milliseconds.
    pub(crate) fn start(order: &KeeperOrder, user: &User, socket: OwnedFd) -> Result<Self, Error> {
        let handles = Handles { inherited: vec![socket], ..Handles::default() };
        let jailed = skep_jail::spawn(&order.binary, &user_order(order, user), handles)?;
        let watched = jailed.pidfd.try_clone().and_then(|pidfd| {
            // SAFETY: the `OwnedFd` moves in: it stays open, and the same, as long as the `AsyncFd` has it.
            let registered = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) };
            registered.map_err(std::io::Error::from)
        });
        match watched {
            Ok(ended) => Ok(Self { jailed, ended }),
            Err(error) => {
                let _ = jailed.kill();
                let _ = jailed.wait(PATIENCE);
                jailed.reap();
                Err(Error::io("pidfd of the server")(error))
            }
        }
    }

    /// Asks it to finish what is under way and to end.
    pub(crate) fn ask_to_end(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) = self.jailed.signal(signal) {
            tracing::error!(%error, "the server could not be signalled");
        }
    }

    /// Waits until it has ended. May be dropped and called again.
    pub(crate) async fn ended(&self) {
        // An error here means that nothing can be waited for: as good as ended, it is killed next.
        let _ = self.ended.readable().await;
    }

    /// Takes its exit status, once it has ended.
    pub(crate) fn status(&self) -> Option<ExitStatus> {
        let _ = self.jailed.wait(PATIENCE);
        self.jailed.reap()
    }
}

/// Without further groups: a group such as `docker` is as good as root.
fn user_order(order: &KeeperOrder, user: &User) -> Order {
    Order {
        program: OWN_PROGRAM.into(),
        arguments: order.server_arguments.clone(),
        environment: order.server_environment.clone(),
        uid: user.uid,
        gid: user.gid,
        groups: Vec::new(),
        confinement: Confinement::User,
    }
}
