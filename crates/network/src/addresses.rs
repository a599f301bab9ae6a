//! Assigns addresses to VMs.

use std::collections::BTreeSet;

/// The index of a VM address in its subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot(pub(crate) u32);

/// The pool of slots. A released slot is reused as late as possible, so that connections to an ended VM do not reach
/// another one.
#[derive(Debug)]
pub(crate) struct AddressPool {
    count: u32,
    next: u32,
    /// Slots of existing ports.
    taken: BTreeSet<Slot>,
    /// Slots that only a port for a given address gets.
    reserved: BTreeSet<Slot>,
}

impl AddressPool {
    pub(crate) fn new(count: u32) -> Self {
        Self { count, next: 0, taken: BTreeSet::new(), reserved: BTreeSet::new() }
    }

    pub(crate) fn take(&mut self) -> Option<Slot> {
        (0..self.count).find_map(|_| {
            let slot = Slot(self.next);
            self.next = (self.next + 1) % self.count;
            (!self.reserved.contains(&slot) && self.taken.insert(slot)).then_some(slot)
        })
    }

    /// Takes the slot of an adopted VM. `false` if it is out of range or already taken.
    pub(crate) fn adopt(&mut self, slot: Slot) -> bool {
        if slot.0 >= self.count {
            return false;
        }
        // Smaller slots may have been used recently.
        self.next = self.next.max((slot.0 + 1) % self.count);
        self.taken.insert(slot)
    }

    /// Keeps a slot for later, whether a port has it now or not.
    pub(crate) fn reserve(&mut self, slot: Slot) {
        self.reserved.insert(slot);
    }

    /// Ends a reservation. A port that has the slot keeps it.
    pub(crate) fn end_reservation(&mut self, slot: Slot) {
        self.reserved.remove(&slot);
    }

    pub(crate) fn end_all_reservations(&mut self) {
        self.reserved.clear();
    }

    pub(crate) fn is_taken(&self, slot: Slot) -> bool {
        self.taken.contains(&slot)
    }

    pub(crate) fn release(&mut self, slot: Slot) {
        self.taken.remove(&slot);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_slot_is_given_twice(count in 1_u32..20, steps in prop::collection::vec(any::<bool>(), 0..200)) {
            let mut addresses = AddressPool::new(count);
            let mut held = std::collections::VecDeque::new();
            for take in steps {
                if !take {
                    held.pop_front().into_iter().for_each(|slot| addresses.release(slot));
                    continue;
                }
                match addresses.take() {
                    Some(slot) => {
                        prop_assert!(!held.contains(&slot) && slot.0 < count);
                        held.push_back(slot);
                    }
                    None => prop_assert_eq!(held.len(), count as usize),
                }
            }
        }
    }

    #[test]
    fn a_slot_that_is_in_use_already_is_not_given_away() {
        let mut addresses = AddressPool::new(3);
        assert!(addresses.adopt(Slot(1)) && !addresses.adopt(Slot(1)) && !addresses.adopt(Slot(3)));
        assert_eq!((addresses.take(), addresses.take()), (Some(Slot(2)), Some(Slot(0))));
        assert_eq!(addresses.take(), None);
    }

    #[test]
    fn a_reserved_slot_is_given_only_to_who_asks_for_it() {
        let mut addresses = AddressPool::new(3);
        let first = addresses.take().unwrap();
        addresses.reserve(first);
        addresses.release(first);
        assert_eq!([(); 3].map(|()| addresses.take()), [Some(Slot(1)), Some(Slot(2)), None]);
        assert!(addresses.adopt(first) && !addresses.adopt(first));
        // The port keeps the slot until it is released.
        addresses.end_reservation(first);
        assert_eq!(addresses.take(), None);
        addresses.release(first);
        assert_eq!(addresses.take(), Some(first));
        addresses.reserve(first);
        addresses.release(first);
        assert_eq!(addresses.take(), None);
        addresses.end_all_reservations();
        assert_eq!(addresses.take(), Some(first));
    }

    #[test]
    fn a_released_slot_is_reused_last() {
        let mut addresses = AddressPool::new(3);
        let first = addresses.take().unwrap();
        addresses.release(first);
        assert_eq!(addresses.take(), Some(Slot(1)));
        assert_eq!(addresses.take(), Some(Slot(2)));
        assert_eq!(addresses.take(), Some(first));
        assert_eq!(addresses.take(), None);
    }
}
