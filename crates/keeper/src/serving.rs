//! Answering one server.

use std::{os::fd::OwnedFd, sync::Arc};

use skep_keeper_protocol::{Answer, Answerer, KeeperEnd, Request, Welcome};
use tokio::task::JoinSet;

use crate::{Error, PairFiles, vmms::Vmms};

/// Requests at the same time: one for each VM that a machine may hold, and some. A server that asks for more waits, for
/// each of them takes our memory until it has read its answer.
const UNDER_WAY: usize = 1024;

/// What a server may ask for. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Desk {
    /// The certificate, where it lies in files.
    pub(crate) tls: Option<Arc<PairFiles>>,
    /// The VMs, where there are any.
    pub(crate) vmms: Option<Arc<Vmms>>,
}

/// Answers one server until its socket closes, and finishes what it asked.
pub(crate) async fn serve(end: KeeperEnd, welcome: Welcome, listeners: Vec<OwnedFd>, desk: Desk) {
    if let Err(error) = end.welcome(&welcome, &listeners).await {
        return tracing::error!(%error, "the server could not be welcomed");
    }
    drop(listeners);
    let perform = |request, answerer| perform(desk.clone(), request, answerer);
    answer_all(&end, perform).await;
}

async fn perform(desk: Desk, request: Request, answerer: Answerer) {
    let answer = match (request, desk) {
        (Request::Tls { seen, serving }, desk) => tls(desk.tls, seen, serving).await,
        (request, Desk { vmms: Some(vmms), .. }) => return vmms.serve(request, answerer).await,
        (_, Desk { vmms: None, .. }) => Err(Error::NoSwarm("this start has no VMs".to_owned())),
    };
    let answer = answer.unwrap_or_else(|error| Answer::Refused(error.into()));
    // A server that went away needs no answer.
    let _ = answerer.answer(answer, &[]).await;
}

/// The files may lie where reading takes its time.
async fn tls(files: Option<Arc<PairFiles>>, seen: u64, serving: u64) -> Result<Answer, Error> {
    let files = files.ok_or(Error::NoCertificate)?;
    let pair = tokio::task::spawn_blocking(move || files.newer_than(seen, serving)).await;
    Ok(Answer::Tls { pair: pair.map_err(|error| Error::io("TLS files")(std::io::Error::other(error)))? })
}

async fn answer_all<F>(end: &KeeperEnd, perform: impl Fn(Request, Answerer) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut under_way = JoinSet::new();
    loop {
        tokio::select! {
            received = end.receive(), if under_way.len() < UNDER_WAY => match received {
                Ok(Some((request, answerer))) => drop(under_way.spawn(perform(request, answerer))),
                Ok(None) => break,
                Err(error) => {
                    tracing::error!(%error, "the server is not talked with further: {error}");
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

    use skep_keeper_protocol::{ServerEnd, SwarmAbility};
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_server_that_asks_too_much_waits() {
        let (ours, theirs) = skep_keeper_protocol::pair().unwrap();
        let end = KeeperEnd::new(ours).unwrap();
        let swarm = SwarmAbility::Unable { reason: "a test".to_owned() };
        let welcome = Welcome { settings: serde_json::json!({}), admin_key: None, swarm };
        end.welcome(&welcome, &[]).await.unwrap();
        let (server, ..) = ServerEnd::connect(theirs).await.unwrap();

        let (begun, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let counted = (Arc::clone(&begun), Arc::clone(&gate));
        tokio::spawn(async move {
            let perform = |_, answerer: Answerer| {
                counted.0.fetch_add(1, Ordering::Relaxed);
                let gate = Arc::clone(&counted.1);
                async move {
                    let _open = gate.acquire_owned().await;
                    answerer.answer(Answer::List { vms: Vec::new() }, &[]).await.unwrap();
                }
            };
            answer_all(&end, perform).await;
        });
        let mut asked = JoinSet::new();
        for _ in 0..UNDER_WAY + 50 {
            let server = server.clone();
            asked.spawn(async move { server.list().await });
        }
        // More than enough turns for all of them to be read.
        for _ in 0..20 * UNDER_WAY {
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::Relaxed), UNDER_WAY);
        gate.add_permits(1);
        while let Some(answer) = asked.join_next().await {
            answer.unwrap().unwrap();
        }
        assert_eq!(begun.load(Ordering::Relaxed), UNDER_WAY + 50);
    }
}
