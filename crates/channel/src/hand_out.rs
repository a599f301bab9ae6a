//! The data that a VM with an identity receives when it is assigned to its owner.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::Mismatch;

/// The current time and a random seed. A guest that was stopped or restored can know neither.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeAndSeed {
    /// Nanoseconds since 1970, taken as late as possible before sending.
    pub unix_time_ns: u64,
    /// Random seed for the guest's kernel: 64 bytes as hexadecimal digits.
    pub seed: String,
}

#[cfg(feature = "host")]
impl TimeAndSeed {
    /// Twice the size of the random pool of the guest's kernel.
    const SEED_BYTES: usize = 64;

    /// The current time with a new seed.
    pub fn now() -> Self {
        let seed: [u8; Self::SEED_BYTES] = rand::random();
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            seed: seed.iter().map(|byte| format!("{byte:02x}")).collect(),
            // Last, so that it is as recent as possible.
            unix_time_ns: since_1970.unwrap_or_default().as_nanos() as u64,
        }
    }
}

/// The seed must not appear in logs.
impl fmt::Debug for TimeAndSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moment").field("unix_time_ns", &self.unix_time_ns).finish_non_exhaustive()
    }
}

/// Assigns a VM that has an identity to its owner. May be repeated: each one replaces all variables, and the new owner
/// does not see the ended commands of the previous one.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOut {
    /// The current time and a new seed: those from the restore are outdated.
    pub moment: TimeAndSeed,
    /// Environment variables of all commands in this VM.
    pub env: BTreeMap<String, String>,
}

/// The seed and the values of variables must not appear in logs.
impl fmt::Debug for HandOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Vec<&String> = self.env.keys().collect();
        f.debug_struct("HandOut").field("moment", &self.moment).field("env", &env).finish()
    }
}

/// The guest's confirmation of a hand-out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HandOutReport {
    /// Whether the kernel accepted the seed and rekeyed its random generator.
    pub reseeded: bool,
    /// By how much the clock was advanced, in milliseconds; negative if it was fast.
    pub clock_step_ms: f64,
}

impl HandOutReport {
    /// Checks that the hand-out took effect.
    ///
    /// # Errors
    /// The first part that differs. Such a VM must not be used.
    pub fn verify(&self) -> Result<(), Mismatch> {
        Mismatch::check_time_and_seed(self.reseeded, self.clock_step_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts() {
        let part = |reseeded, clock_step_ms| {
            HandOutReport { reseeded, clock_step_ms }.verify().map_err(|mismatch| mismatch.part)
        };
        assert_eq!(part(true, -1.5), Ok(()));
        assert_eq!(part(false, -1.5), Err("randomness"));
        assert_eq!(part(true, f64::INFINITY), Err("clock step"));
    }

    #[test]
    fn secrets_do_not_reach_a_log() {
        let moment = TimeAndSeed { unix_time_ns: 7, seed: "5eed".repeat(32) };
        let env = BTreeMap::from([("TOKEN".to_owned(), "secret".to_owned())]);
        let text = format!("{:?}", HandOut { moment, env });
        assert!(!text.contains("secret") && !text.contains("5eed") && text.contains("TOKEN"));
    }

    #[cfg(feature = "host")]
    #[test]
    fn two_seeds_differ() {
        let (first, second) = (TimeAndSeed::now(), TimeAndSeed::now());
        assert_eq!((first.seed.len(), second.seed.len()), (128, 128));
        assert_ne!(first.seed, second.seed);
        assert!(first.unix_time_ns > 0);
    }
}
