//! What git on the server tried for the repositories of a VM.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::egress::{EgressReport, EgressTry, EgressVerdict, MAX_TRIES};

/// Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct RelayLog(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    refused: u64,
    /// The last ones, oldest first.
    tries: VecDeque<EgressTry>,
}

impl RelayLog {
    pub(crate) fn add(&self, tried: EgressTry) {
        let mut state = self.lock();
        state.refused += u64::from(tried.verdict == EgressVerdict::Refused);
        if state.tries.len() == MAX_TRIES {
            state.tries.pop_front();
        }
        state.tries.push_back(tried);
    }

    /// Adds the tries to a report, which keeps the last ones.
    pub(crate) fn add_to(&self, report: &mut EgressReport) {
        let state = self.lock();
        report.refused += state.refused;
        report.tries.extend(state.tries.iter().cloned());
        report.tries.sort_by_key(|tried| tried.at);
        let outdated = report.tries.len().saturating_sub(MAX_TRIES);
        report.tries.drain(..outdated);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn tried(second: i64, git_relay: bool) -> EgressTry {
        let at = Timestamp::from_second(second).unwrap();
        let verdict = if git_relay { EgressVerdict::Refused } else { EgressVerdict::Allowed };
        EgressTry { at, name: None, address: None, port: Some(443), verdict, reason: None, git_relay }
    }

    #[test]
    fn a_report_has_the_last_tries_of_both() {
        let log = RelayLog::default();
        (0..150).map(|number| 2 * number).for_each(|second| log.add(tried(second, true)));
        let own: Vec<_> = (0..30).map(|number| tried(2 * number + 241, false)).collect();
        let mut report = EgressReport { refused: 1, tries: own, ..EgressReport::default() };
        log.add_to(&mut report);
        assert_eq!((report.refused, report.tries.len()), (151, MAX_TRIES));
        assert!(report.tries.is_sorted_by_key(|tried| tried.at));
        assert_eq!(report.tries.iter().filter(|tried| !tried.git_relay).count(), 30);
        assert_eq!(report.tries.last().unwrap().at, Timestamp::from_second(299).unwrap());
    }
}
