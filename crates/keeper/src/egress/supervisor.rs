//! The supervision of the egress process: it is started again when it ends, and gets all policies before it serves VMs.

use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use skep_keeper_protocol::{EgressKeeperEnd, EgressRequest};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::spawn_blocking,
    time::sleep,
};

use super::{Policies, Shared, process::Running};
use crate::Error;

/// Between the end of a process and the start of the next one.
const RESTART_DELAY: Duration = Duration::from_millis(100);

impl Shared {
    pub(super) async fn supervise(self: Arc<Self>, mut adopted: Option<Running>) {
        loop {
            let ran = match adopted.take() {
                Some(running) => {
                    let pid = running.process.pid;
                    tracing::info!(pid, "the egress process is taken over");
                    self.run(running).await
                }
                None => self.run_once().await,
            };
            match ran {
                Ok(()) => tracing::warn!("the egress process has ended and is started again"),
                Err(error) => tracing::error!(%error, "the egress process cannot be started: {error}"),
            }
            sleep(RESTART_DELAY).await;
        }
    }

    /// Starts a process and waits until it ends.
    async fn run_once(self: &Arc<Self>) -> Result<(), Error> {
        let this = Arc::clone(self);
        let spawned = spawn_blocking(move || this.spawn()).await;
        let (process, socket) = spawned
            .map_err(|error| Error::io("start of the egress process")(std::io::Error::other(error)))??;
        self.run(Running { process, control: EgressKeeperEnd::new(socket)? }).await
    }

    /// Gives a process the policies and waits until it ends.
    async fn run(self: &Arc<Self>, running: Running) -> Result<(), Error> {
        let watched = running.process.pidfd.try_clone().map_err(Error::io("pidfd of the egress process"))?;
        let running = Arc::new(running);
        // SAFETY: the `OwnedFd` is moved in, so the descriptor stays open and unchanged as long as the `AsyncFd` exists.
        let ended = unsafe { AsyncFd::register_with_interest(watched, Interest::READABLE) };
        let ended =
            ended.map_err(|error| Error::io("pidfd of the egress process")(std::io::Error::from(error)))?;
        if let Some(given) = self.hand_over(&running).await {
            self.running.send_replace(Some(Arc::clone(&running)));
            self.correct(&running, &given).await;
            // After an error the end cannot be awaited: treated as ended, because it is killed next.
            let _ = ended.readable().await;
            self.running.send_replace(None);
        }
        let end = spawn_blocking(move || running.end());
        end.await.map_err(|error| Error::io("end of the egress process")(std::io::Error::other(error)))
    }

    /// Tells the running process of other name servers of the machine. The next process gets them at its start.
    pub(super) async fn follow_name_servers(self: Arc<Self>) {
        loop {
            let servers = self.name_servers.changed().await;
            let running = self.running.borrow().clone();
            if let Some(running) = running {
                tracing::info!(?servers, "names of VMs are looked up by other name servers");
                running.request(EgressRequest::NameServers { servers }).await;
            }
        }
    }

    /// Gives the process the name servers and all policies. Returns the policies.
    async fn hand_over(&self, running: &Running) -> Option<Policies> {
        let servers = self.name_servers.current().await;
        running.request(EgressRequest::NameServers { servers }).await?;
        let policies = self.policies().clone();
        for (vm, egress) in policies.clone() {
            running.request(EgressRequest::Set { vm, egress }).await?;
        }
        running.request(EgressRequest::Serve).await?;
        Some(policies)
    }

    /// Tells the process of policies that changed while it was given all: of VMs that ended, and of those whose change
    /// failed. Must be called after other tasks can make requests, so that each later change is sent by its task.
    async fn correct(&self, running: &Running, given: &Policies) {
        let _changing = self.changing.lock().await;
        let corrections = corrections(given, &self.policies());
        for request in corrections {
            if running.request(request).await.is_none() {
                // It is killed, and the next process gets all policies.
                return;
            }
        }
    }
}

/// The requests after which a process has the current policies of the VMs whose policies it was given.
fn corrections(given: &Policies, current: &Policies) -> Vec<EgressRequest> {
    let changed = given.iter().filter(|(vm, egress)| current.get(vm) != Some(egress));
    let request = |vm: Ipv4Addr| match current.get(&vm) {
        Some(egress) => EgressRequest::Set { vm, egress: egress.clone() },
        None => EgressRequest::Forget { vm },
    };
    changed.map(|(vm, _)| request(*vm)).collect()
}

#[cfg(test)]
mod tests {
    use skep_api::{AccountId, egress::EgressPolicy};
    use skep_keeper_protocol::VmEgress;

    use super::*;

    #[test]
    fn a_process_learns_of_policies_that_changed_while_it_was_given_all() {
        let vm = |last| Ipv4Addr::new(10, 77, 0, last);
        let account = AccountId::generate();
        let all = || VmEgress::new(account, EgressPolicy::All);
        let given = Policies::from([2, 3, 4].map(|last| (vm(last), all())));
        let current = Policies::from([
            (vm(2), all()),
            (vm(3), VmEgress::new(account, EgressPolicy::None)),
            // Its task sends it.
            (vm(5), all()),
        ]);
        let requests = corrections(&given, &current);
        let [
            EgressRequest::Set { vm: changed, egress: VmEgress { policy: EgressPolicy::None, .. } },
            EgressRequest::Forget { vm: ended },
        ] = requests.as_slice()
        else {
            panic!("{requests:?}");
        };
        assert_eq!((*changed, *ended), (vm(3), vm(4)));
        assert!(corrections(&current, &current).is_empty());
    }
}
