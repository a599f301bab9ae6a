//! Memory that was admitted and is not taken yet. The kernel still counts it as available, so admissions at the same time
//! would each see all of it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Error;

/// The admissions of all copies and loads of templates that are in progress, in bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryAdmissions(Arc<Mutex<u64>>);

/// An admission of memory, which ends on drop. Its holder keeps it until the memory is taken.
#[derive(Debug, Default)]
#[must_use]
pub struct MemoryAdmission {
    admissions: MemoryAdmissions,
    bytes: u64,
}

impl MemoryAdmissions {
    /// Admits memory if `check` succeeds. `check` gets the bytes of all other admissions, and no other admission begins
    /// or ends meanwhile: it reads the memory of the machine itself, so that what was just taken counts either there or
    /// here. Memory that is being taken counts in both.
    ///
    /// # Errors
    /// Those of `check`.
    pub(crate) fn admit(
        &self,
        bytes: u64,
        check: impl FnOnce(u64) -> Result<(), Error>,
    ) -> Result<MemoryAdmission, Error> {
        let mut admitted = self.lock();
        check(*admitted)?;
        *admitted += bytes;
        drop(admitted);
        Ok(MemoryAdmission { admissions: self.clone(), bytes })
    }

    /// The sum of all admissions, in bytes. Read it before the memory of the machine: memory that is taken in between is
    /// then counted twice rather than not at all.
    pub(crate) fn bytes(&self) -> u64 {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MemoryAdmission {
    fn drop(&mut self) {
        *self.admissions.lock() -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use skep_api::ErrorCode;
    use skep_keeper_protocol::{AfterCapture, MachineMemory};

    use super::*;
    use crate::capacity;

    const MIB: u64 = 1 << 20;

    /// Of a machine that reserves 1,000 MiB and 64 MiB for a VM.
    fn memory(available_mb: u64) -> MachineMemory {
        MachineMemory {
            available_bytes: available_mb * MIB,
            total_bytes: 10_000 * MIB,
            templates_bytes: 0,
            under_pressure: false,
        }
    }

    #[test]
    fn a_template_that_is_not_loaded_is_admitted_with_its_size_and_beside_copies() {
        let admissions = MemoryAdmissions::default();
        let load = |bytes: u64| {
            admissions.admit(bytes, |admitted| {
                capacity::check_memory_after(memory(1064 + 300).without(admitted), bytes)
            })
        };
        assert_eq!(load(301 * MIB).unwrap_err().code(), ErrorCode::NoCapacity);
        drop(load(300 * MIB).unwrap());
        let copy = admissions.admit(200 * MIB, |_| Ok(())).unwrap();
        assert!(load(101 * MIB).is_err() && load(100 * MIB).is_ok());
        drop(copy);
        assert!(load(300 * MIB).is_ok());
    }

    #[test]
    fn copies_at_the_same_time_are_not_admitted_the_same_memory() {
        let admissions = MemoryAdmissions::default();
        for (then, available_mb) in [(AfterCapture::RunsOn, 1064 + 1000), (AfterCapture::Ends, 500 + 1000)] {
            let copy = |bytes: u64| {
                admissions.admit(bytes, |admitted| {
                    capacity::check_copy_memory(memory(available_mb).without(admitted), bytes, then)
                })
            };
            let all = copy(1000 * MIB).unwrap();
            assert_eq!(copy(1).unwrap_err().code(), ErrorCode::NoCapacity);
            drop(all);
            let mut held = vec![copy(400 * MIB).unwrap(), copy(400 * MIB).unwrap()];
            assert!(copy(201 * MIB).is_err(), "{then:?}");
            held.push(copy(200 * MIB).unwrap());
            assert_eq!(admissions.bytes(), 1000 * MIB);
            drop(held.remove(0));
            assert!(copy(401 * MIB).is_err() && copy(400 * MIB).is_ok(), "{then:?}");
            drop(held);
            assert_eq!(admissions.bytes(), 0, "a copy that was refused is not counted");
        }
    }
}
