//! Limits how many connections are open, and how many requests under way, in total and by address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use super::limit_key;

/// The counters. Clones are cheap and share them.
#[derive(Debug, Clone)]
pub(crate) struct Concurrency(Arc<Shared>);

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

/// The permit of one connection or request, to be dropped at its end.
#[derive(Debug)]
pub(crate) struct Permit {
    counted: Arc<Shared>,
    /// `None` if it is not counted by address.
    address: Option<IpAddr>,
}

impl Concurrency {
    pub(crate) fn new(max: usize, max_per_address: usize) -> Self {
        Self(Arc::new(Shared { max, max_per_address, open: Mutex::default() }))
    }

    /// Counts one more. `address` is `None` where it is not known or shared by many callers, such as that of a trusted proxy.
    pub(crate) fn open(&self, address: Option<IpAddr>) -> Result<Permit, LimitReached> {
        let address = address.map(limit_key);
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
            // Only addresses with something open take memory.
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
        let connections = Concurrency::new(3, 2);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let other: IpAddr = "192.0.2.2".parse().unwrap();
        let first = connections.open(Some(one)).unwrap();
        let second = connections.open(Some(one)).unwrap();
        assert_eq!(connections.open(Some(one)).unwrap_err(), LimitReached::Address);
        let third = connections.open(None).unwrap();
        assert_eq!(connections.open(Some(other)).unwrap_err(), LimitReached::Total);
        drop((first, third));
        connections.open(Some(one)).unwrap();
        drop(second);
        assert!(connections.0.open.lock().unwrap().by_address.is_empty());
        assert_eq!(connections.0.open.lock().unwrap().total, 0);
    }
}
