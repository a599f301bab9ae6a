//! Resources of this process, under the standard names of Prometheus clients.
//!
//! Read from `/proc` directly: a crate for it would bring more dependencies than these few values justify.

use std::{fs, io, time::Duration};

use prometheus_client::{
    metrics::{counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

/// The current resource usage of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    cpu: Duration,
    resident_bytes: u64,
    virtual_bytes: u64,
    threads: u64,
    descriptors: u64,
    max_descriptors: u64,
}

impl Usage {
    /// Reads `/proc`. Blocks.
    ///
    /// # Errors
    /// `/proc` cannot be read or parsed.
    pub(crate) fn now() -> io::Result<Self> {
        let stat = Stat::parse(&fs::read_to_string("/proc/self/stat")?)
            .ok_or_else(|| io::Error::other("/proc/self/stat cannot be parsed"))?;
        // Reading the directory opens one itself.
        let descriptors = fs::read_dir("/proc/self/fd")?.count().saturating_sub(1);
        Ok(Self {
            cpu: Duration::from_secs_f64(in_seconds(stat.ticks)),
            resident_bytes: stat.resident_pages.saturating_mul(page_size() as u64),
            virtual_bytes: stat.virtual_bytes,
            threads: stat.threads,
            descriptors: descriptors as u64,
            max_descriptors: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
        })
    }

    /// Adds these values to a registry.
    pub(crate) fn register(self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("process");
        let cpu = ConstCounter::new(self.cpu.as_secs_f64());
        registry.register_with_unit("cpu", "Processor time of all threads", Unit::Seconds, cpu);
        let mut bytes = |name: &str, help: &str, value: u64| {
            registry.register_with_unit(name, help, Unit::Bytes, ConstGauge::new(value));
        };
        bytes("resident_memory", "Resident memory of the process", self.resident_bytes);
        bytes("virtual_memory", "Virtual memory of the process", self.virtual_bytes);
        let mut count = |name: &str, help: &str, value: u64| {
            registry.register(name, help, ConstGauge::new(value));
        };
        count("threads", "Threads of the process", self.threads);
        count("open_fds", "Open file descriptors", self.descriptors);
        count("max_fds", "Limit of open file descriptors", self.max_descriptors);
    }
}

#[expect(clippy::cast_precision_loss, reason = "ticks of a processor, far below what a double holds exactly")]
fn in_seconds(ticks: u64) -> f64 {
    ticks as f64 / clock_ticks_per_second() as f64
}

/// The used fields of `/proc/self/stat`.
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    ticks: u64,
    threads: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    /// Counts fields from the end of the process name, which may contain spaces and parentheses itself.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            ticks: number(11)?.saturating_add(number(12)?),
            threads: number(17)?,
            virtual_bytes: number(20)?,
            resident_pages: number(21)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_in_the_process_name_do_not_shift_fields() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 700 77 0 0 20 0 9 0 1234 4096000 250 rest";
        let stat = Stat { ticks: 777, threads: 9, virtual_bytes: 4_096_000, resident_pages: 250 };
        for name in ["skep", "a b", "a) S 9 (b", ")"] {
            assert_eq!(Stat::parse(&format!("42 ({name}) {fields}")).as_ref(), Some(&stat), "{name}");
        }
        assert_eq!(Stat::parse("42 (skep) S 1"), None);
    }

    #[test]
    fn this_process_uses_something() {
        let usage = Usage::now().unwrap();
        assert!(usage.resident_bytes > 0 && usage.resident_bytes <= usage.virtual_bytes, "{usage:?}");
        assert!(usage.threads > 0 && usage.descriptors > 2, "{usage:?}");
        assert!(usage.descriptors <= usage.max_descriptors, "{usage:?}");
    }
}
