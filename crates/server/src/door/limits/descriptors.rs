//! Lowers limits to what the process may open.

use super::Limits;

/// Descriptors for each connection: its socket, and what its requests open.
const PER_CONNECTION: usize = 4;

impl Limits {
    /// These limits, lowered so far that connections and requests leave descriptors for the rest of a process that may open this
    /// many files. One address and one account get at most half.
    #[must_use]
    pub fn within_descriptors(mut self, descriptors: u64) -> Self {
        let connections = usize::try_from(descriptors).unwrap_or(usize::MAX) / PER_CONNECTION;
        let half = connections.div_ceil(2);
        for (limit, most) in [
            (&mut self.max_connections, connections),
            (&mut self.max_connections_per_address, half),
            (&mut self.max_vm_connections, half),
            (&mut self.max_requests, connections),
            (&mut self.max_requests_per_address, half),
            (&mut self.max_requests_per_account, half),
        ] {
            *limit = (*limit).min(most.max(1));
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_descriptors_lower_the_limits_and_many_do_not() {
        let defaults = Limits::default();
        let same = defaults.clone().within_descriptors(65_536);
        assert_eq!(same.max_connections, defaults.max_connections);
        assert_eq!(same.max_requests_per_address, defaults.max_requests_per_address);
        let few = defaults.within_descriptors(1_024);
        assert_eq!((few.max_connections, few.max_connections_per_address), (256, 128));
        assert_eq!((few.max_requests, few.max_requests_per_account), (256, 128));
        let none = few.within_descriptors(0);
        assert_eq!((none.max_connections, none.max_requests_per_account), (1, 1));
    }
}
