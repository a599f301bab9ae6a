//! The name servers that the egress process asks. The keeper reads them, because the process opens no file.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use resolv_conf::ScopedIp;
use tokio::{task::spawn_blocking, time::sleep};

const RESOLV_CONF: &str = "/etc/resolv.conf";
const DNS_PORT: u16 = 53;
/// Between two looks at the file, which is small. A change is rare, as on a laptop that joins another network.
const LOOK_INTERVAL: Duration = Duration::from_secs(3);

pub(super) enum NameServers {
    /// Those that the operator has set.
    Set(Vec<SocketAddr>),
    /// Those of the machine, as they were read last.
    OfMachine(Mutex<Vec<SocketAddr>>),
}

impl NameServers {
    /// `set` are the operator's. Without any, those of the machine are used.
    pub(super) fn new(set: Vec<SocketAddr>) -> Self {
        if set.is_empty() { Self::OfMachine(Mutex::default()) } else { Self::Set(set) }
    }

    pub(super) async fn current(&self) -> Vec<SocketAddr> {
        match self {
            Self::Set(servers) => servers.clone(),
            Self::OfMachine(last) => {
                let servers = read().await;
                replace(last, &servers);
                servers
            }
        }
    }

    /// Waits until the machine has other name servers than those that were read last.
    pub(super) async fn changed(&self) -> Vec<SocketAddr> {
        let Self::OfMachine(last) = self else { return std::future::pending().await };
        loop {
            sleep(LOOK_INTERVAL).await;
            let servers = read().await;
            if replace(last, &servers) {
                return servers;
            }
        }
    }
}

/// Replaces the name servers that were read last. Returns whether these differ from them.
fn replace(last: &Mutex<Vec<SocketAddr>>, servers: &[SocketAddr]) -> bool {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let differ = *last != servers;
    if differ {
        *last = servers.to_vec();
    }
    differ
}

/// Without a readable file there are no name servers, and VMs find no names until there is one.
async fn read() -> Vec<SocketAddr> {
    let read = spawn_blocking(|| std::fs::read(RESOLV_CONF).unwrap_or_default()).await;
    parse(&read.unwrap_or_default())
}

/// The name servers of a file in the format of resolv.conf(5). Lines that cannot be read are skipped. A link-local address is
/// left out, because the zone that it needs is not part of an address.
fn parse(text: &[u8]) -> Vec<SocketAddr> {
    let (config, _) = resolv_conf::Config::parse_with_errors(text);
    let addresses = config.nameservers.into_iter().filter_map(|server| match server {
        ScopedIp::V4(address) => Some(IpAddr::V4(address)),
        ScopedIp::V6(address, None) => Some(IpAddr::V6(address)),
        ScopedIp::V6(_, Some(_)) => None,
    });
    addresses.map(|address| SocketAddr::new(address, DNS_PORT)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_and_other_lines_skipped() {
        let text = "# by hand\nsearch example.org\nnameserver 192.0.2.53\nnameserver nonsense\n\
            nameserver fe80::1%eth0\nnameserver 2001:db8::53\noptions ndots:2 unheard-of\n";
        let servers: Vec<String> = parse(text.as_bytes()).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.53:53", "[2001:db8::53]:53"]);
        assert_eq!(parse(b"nameserver 192.0.2.53\n\xff\xfe\n"), parse(b"nameserver 192.0.2.53"));
        assert_eq!(parse(b""), []);
    }
}
