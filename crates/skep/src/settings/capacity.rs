//! How many VMs run, and how much memory they get.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Args, Serialize, Deserialize)]
pub(crate) struct CapacitySettings {
    /// Maximum number of running VMs [default: as many as the memory for VMs allows].
    #[arg(long, env = "SKEP_MAX_VMS", value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_vms: Option<u32>,
    /// Memory for VMs, in MiB [default: most of the free memory at start].
    #[arg(long, env = "SKEP_MEMORY_MB", value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) memory_mb: Option<u64>,
    /// How many times the memory for VMs they may be promised in total, at least 1: few VMs use all of their memory.
    #[arg(long, env = "SKEP_MEMORY_OVERCOMMIT", value_name = "FACTOR", default_value = "4", value_parser = overcommit)]
    pub(crate) memory_overcommit: f64,
    /// Whether a VM is ended before the machine has no memory left: the one that exceeds its share most. If not, the kernel
    /// kills a process then.
    #[arg(long, env = "SKEP_MEMORY_GUARD", value_name = "WHEN", default_value = "on")]
    pub(crate) memory_guard: MemoryGuard,
}

/// Whether a VM is ended before the machine has no memory left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MemoryGuard {
    /// Always.
    On,
    /// Never.
    Off,
}

/// Parses the factor by which memory may be promised.
fn overcommit(text: &str) -> Result<f64, String> {
    let factor = text.parse::<f64>().ok().filter(|factor| (1.0..=1000.0).contains(factor));
    factor.ok_or_else(|| format!("`{text}` is not a number from 1 to 1000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_promised_at_least_once() {
        assert_eq!((overcommit("1"), overcommit("1.5")), (Ok(1.0), Ok(1.5)));
        for wrong in ["0.9", "-4", "NaN", "inf", "much", ""] {
            assert!(overcommit(wrong).unwrap_err().contains("from 1 to 1000"), "{wrong}");
        }
    }
}
