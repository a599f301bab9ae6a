//! Limits the open connections, in total and by address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use super::counted_as;

/// The counters. Clones are cheap and share them.
#[derive(Debug, Clone)]
pub(crate) struct Connections(Arc<Counted>);

#[derive(Debug)]
struct Counted {
    most: usize,
    most_of_address: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Full {
    /// The limit of the server.
    All,
    /// The limit of one address.
    Address,
}

/// The permit of one connection, to be dropped when it is closed.
#[derive(Debug)]
pub(crate) struct Permit {
    counted: Arc<Counted>,
    /// `None` if the connection is not counted by address.
    address: Option<IpAddr>,
}

impl Connections {
    pub(crate) fn new(most: usize, most_of_address: usize) -> Self {
        Self(Arc::new(Counted { most, most_of_address, open: Mutex::default() }))
    }

    /// Counts one more connection. `by_address` is false for an address that many callers share, such as a trusted
    /// proxy.
    pub(crate) fn open(&self, address: IpAddr, by_address: bool) -> Result<Permit, Full> {
        let address = by_address.then(|| counted_as(address));
        let mut open = self.0.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.all >= self.0.most {
            return Err(Full::All);
        }
        if let Some(address) = address {
            let of_address = open.by_address.get(&address).copied().unwrap_or(0);
            if of_address >= self.0.most_of_address {
                return Err(Full::Address);
            }
            open.by_address.insert(address, of_address + 1);
        }
        open.all += 1;
        Ok(Permit { counted: Arc::clone(&self.0), address })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.counted.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.all -= 1;
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
    fn nobody_has_more_connections_than_is_allowed() {
        let connections = Connections::new(3, 2);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let other: IpAddr = "192.0.2.2".parse().unwrap();
        let first = connections.open(one, true).unwrap();
        let second = connections.open(one, true).unwrap();
        assert_eq!(connections.open(one, true).unwrap_err(), Full::Address);
        let third = connections.open(one, false).unwrap();
        assert_eq!(connections.open(other, true).unwrap_err(), Full::All);
        drop((first, third));
        connections.open(one, true).unwrap();
        drop(second);
        assert!(connections.0.open.lock().unwrap().by_address.is_empty());
        assert_eq!(connections.0.open.lock().unwrap().all, 0);
    }
}
