//! What a VM that waited under its own identity is given when somebody gets it.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::Mismatch;

/// What no guest can know that was stopped or restored: the time, and randomness that nobody else has.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The time of day, in nanoseconds since 1970, as late as possible before sending.
    pub unix_time_ns: u64,
    /// Fresh randomness for the guest's kernel: 64 bytes as hexadecimal digits.
    pub seed: String,
}

#[cfg(feature = "host")]
impl Moment {
    /// Twice the pool of the guest's kernel.
    const SEED_BYTES: usize = 64;

    /// This moment, with randomness of its own.
    pub fn now() -> Self {
        let seed: [u8; Self::SEED_BYTES] = rand::random();
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            seed: seed.iter().map(|byte| format!("{byte:02x}")).collect(),
            // Told as late as possible.
            unix_time_ns: since_1970.unwrap_or_default().as_nanos() as u64,
        }
    }
}

/// The seed may not come into a log.
impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moment").field("unix_time_ns", &self.unix_time_ns).finish_non_exhaustive()
    }
}

/// Makes a VM that has its identity somebody's. May be repeated: each sets the variables whole, and whoever comes
/// after it does not see the commands that ended before.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOut {
    /// The time of day, and fresh randomness: its own was drawn before it waited.
    pub moment: Moment,
    /// Variables that every command of this VM sees.
    pub env: BTreeMap<String, String>,
}

/// Neither the seed nor the values of variables may come into a log.
impl fmt::Debug for HandOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let env: Vec<&String> = self.env.keys().collect();
        f.debug_struct("HandOut").field("moment", &self.moment).field("env", &env).finish()
    }
}

/// What the guest did at its hand-out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HandOutReport {
    /// Whether the kernel took the seed and began a new key of its random generator with it.
    pub reseeded: bool,
    /// By how much the clock was set, in milliseconds; negative where it was fast.
    pub clock_step_ms: f64,
}

impl HandOutReport {
    /// Whether the guest may be somebody's now.
    ///
    /// # Errors
    /// The first part that it lacks. Such a VM must not be handed out.
    pub fn proves(&self) -> Result<(), Mismatch> {
        Mismatch::of_moment(self.reseeded, self.clock_step_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts() {
        let part = |reseeded, clock_step_ms| {
            HandOutReport { reseeded, clock_step_ms }.proves().map_err(|mismatch| mismatch.part)
        };
        assert_eq!(part(true, -1.5), Ok(()));
        assert_eq!(part(false, -1.5), Err("randomness"));
        assert_eq!(part(true, f64::INFINITY), Err("clock step"));
    }

    #[test]
    fn secrets_do_not_reach_a_log() {
        let moment = Moment { unix_time_ns: 7, seed: "5eed".repeat(32) };
        let env = BTreeMap::from([("TOKEN".to_owned(), "secret".to_owned())]);
        let text = format!("{:?}", HandOut { moment, env });
        assert!(!text.contains("secret") && !text.contains("5eed") && text.contains("TOKEN"));
    }

    #[cfg(feature = "host")]
    #[test]
    fn no_two_moments_share_their_randomness() {
        let (first, second) = (Moment::now(), Moment::now());
        assert_eq!((first.seed.len(), second.seed.len()), (128, 128));
        assert_ne!(first.seed, second.seed);
        assert!(first.unix_time_ns > 0);
    }
}
