//! Limits the open connections, in total and by address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use super::limit_key;

/// The counters. Clones are cheap and share them.
#[derive(Debug, Clone)]
pub(crate) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    max: usize,
    max_per_address: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    total: usize,
    by_address: HashMap<IpAddr, usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LimitReached {
    /// The limit of the server.
    Total,
    /// The limit of one address.
    Address,
}

/// The permit of one connection, to be dropped when it is closed.
#[derive(Debug)]
pub(crate) struct Permit {
    counted: Arc<Shared>,
    /// `None` if the connection is not counted by address.
    address: Option<IpAddr>,
}

impl Connections {
    pub(crate) fn new(max: usize, max_per_address: usize) -> Self {
        Self(Arc::new(Shared { max, max_per_address, open: Mutex::default() }))
    }

    /// Counts one more connection. `by_address` is false for an address that many callers share, such as a trusted
    /// proxy.
    pub(crate) fn open(&self, address: IpAddr, by_address: bool) -> Result<Permit, LimitReached> {
        let address = by_address.then(|| limit_key(address));
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.total >= self.0.max {
            return Err(LimitReached::Total);
        }
        if let Some(address) = address {
            let of_address = open.by_address.get(&address).copied().unwrap_or(0);
            if of_address >= self.0.max_per_address {
                return Err(LimitReached::Address);
            }
            open.by_address.insert(address, of_address + 1);
        }
        open.total += 1;
        Ok(Permit { counted: Arc::clone(&self.0), address })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.counted.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.total -= 1;
        let Some(address) = self.address else { return };
        if let Some(of_address) = open.by_address.get_mut(&address) {
            *of_address -= 1;
            // Only addresses with open connections take memory.
            if *of_address == 0 {
                open.by_address.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_in_total_and_by_address() {
        let connections = Connections::new(3, 2);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let other: IpAddr = "192.0.2.2".parse().unwrap();
        let first = connections.open(one, true).unwrap();
        let second = connections.open(one, true).unwrap();
        assert_eq!(connections.open(one, true).unwrap_err(), LimitReached::Address);
        let third = connections.open(one, false).unwrap();
        assert_eq!(connections.open(other, true).unwrap_err(), LimitReached::Total);
        drop((first, third));
        connections.open(one, true).unwrap();
        drop(second);
        assert!(connections.0.open.lock().unwrap().by_address.is_empty());
        assert_eq!(connections.0.open.lock().unwrap().total, 0);
    }
}
