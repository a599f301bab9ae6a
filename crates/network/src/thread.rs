//! The thread of the network. All work in the namespace is done there, because a network namespace is per thread.

use std::net::{Ipv4Addr, TcpListener};

use tokio::sync::{mpsc, oneshot};

use crate::{
    API_PORT, EgressListeners, Error, KnownAddress, Port, Subnet, Tap, Traffic, listener, state::NetworkState,
};

pub(crate) enum Request {
    Add(oneshot::Sender<Result<Tap, Error>>),
    AddAt(Ipv4Addr, oneshot::Sender<Result<Tap, Error>>),
    /// Begins or ends a reservation.
    Reserve(Ipv4Addr, bool, oneshot::Sender<Result<(), Error>>),
    EndReservations(oneshot::Sender<Result<(), Error>>),
    Remove(Port, oneshot::Sender<Result<(), Error>>),
    Admit(Port, oneshot::Sender<Result<(), Error>>),
    SetEgress(Port, bool, oneshot::Sender<Result<(), Error>>),
    Listen(oneshot::Sender<Result<TcpListener, Error>>),
    ListenForEgress(oneshot::Sender<Result<EgressListeners, Error>>),
    Traffic(Port, oneshot::Sender<Result<Traffic, Error>>),
}

pub(crate) enum StartMode {
    New,
    Adopt(Vec<KnownAddress>),
}

/// Body of the thread.
pub(crate) fn serve(
    name: &str,
    subnet: Subnet,
    mode: StartMode,
    queue: mpsc::Receiver<Request>,
    ready: oneshot::Sender<Result<Vec<Port>, Error>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime.map_err(Error::io("runtime of the network")) {
        Ok(runtime) => runtime,
        Err(error) => return drop(ready.send(Err(error))),
    };
    runtime.block_on(async {
        let begun = match mode {
            StartMode::New => NetworkState::create(name, subnet).await.map(|state| (state, Vec::new())),
            StartMode::Adopt(addresses) => NetworkState::adopt(name, subnet, &addresses).await,
        };
        match begun {
            Ok((state, ports)) => {
                // If the receiver is gone, the queue is closed as well.
                let _ = ready.send(Ok(ports));
                serve_requests(state, queue).await;
            }
            Err(error) => drop(ready.send(Err(error))),
        }
    });
}

async fn serve_requests(mut state: NetworkState, mut queue: mpsc::Receiver<Request>) {
    while let Some(request) = queue.recv().await {
        match request {
            Request::Add(answer) => {
                let outcome = state.add().await;
                hand_over(&mut state, outcome, answer).await;
            }
            Request::AddAt(ip, answer) => {
                let outcome = state.add_at(ip).await;
                hand_over(&mut state, outcome, answer).await;
            }
            Request::Reserve(ip, reserved, answer) => {
                let _ = answer.send(state.reserve(ip, reserved));
            }
            Request::EndReservations(answer) => {
                state.addresses.end_all_reservations();
                let _ = answer.send(Ok(()));
            }
            Request::Remove(port, answer) => {
                let _ = answer.send(state.remove(&port).await);
            }
            Request::Admit(port, answer) => {
                let _ = answer.send(state.admit(&port));
            }
            Request::SetEgress(port, redirected, answer) => {
                let _ = answer.send(state.set_egress(&port, redirected));
            }
            Request::ListenForEgress(answer) => {
                let _ = answer.send(listener::bind_for_egress(state.subnet.gateway()).await);
            }
            Request::Listen(answer) => {
                let _ = answer.send(listener::bind(state.subnet.gateway(), API_PORT).await);
            }
            Request::Traffic(port, answer) => {
                let _ = answer.send(state.traffic(&port).await);
            }
        }
    }
}

async fn hand_over(
    state: &mut NetworkState,
    outcome: Result<Tap, Error>,
    answer: oneshot::Sender<Result<Tap, Error>>,
) {
    if let Err(Ok(tap)) = answer.send(outcome) {
        // The caller is gone, so the address is released.
        let Tap { fd, port } = tap;
        drop(fd);
        let _ = state.remove(&port).await;
    }
}
