//! Builds templates, one after the other, in a thread.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use skep_api::{ErrorCode, Failure, TemplateId};

/// Builds that may wait.
const MAX_WAITING: usize = 16;

/// The builds that wait, and the one that runs.
#[derive(Debug, Default)]
pub(super) struct BuildQueue {
    builds: Mutex<Builds>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Builds {
    /// Builds that VMs wait for. They come before all others.
    first: VecDeque<TemplateId>,
    waiting: VecDeque<TemplateId>,
    /// Builds that wait from a time on.
    later: BTreeMap<TemplateId, Later>,
    running: Option<TemplateId>,
    /// Whether a VM waits for the build that runs.
    is_awaited: bool,
}

#[derive(Debug, Clone, Copy)]
struct Later {
    at: Instant,
    /// Whether a VM waits for it.
    is_awaited: bool,
}

impl Builds {
    /// Lets builds wait whose time has come. Returns how long it is until the next time.
    fn take_due(&mut self, now: Instant) -> Option<Duration> {
        let due = self.later.iter().filter(|(_, later)| later.at <= now);
        let due: Vec<_> = due.map(|(template, later)| (*template, later.is_awaited)).collect();
        for (template, is_awaited) in due {
            self.later.remove(&template);
            let queue = if is_awaited { &mut self.first } else { &mut self.waiting };
            queue.push_back(template);
        }
        self.later.values().map(|later| later.at.saturating_duration_since(now)).min()
    }
}

impl BuildQueue {
    /// Queues a build that a caller asked for.
    pub(super) fn push(&self, template: TemplateId) -> Result<(), Failure> {
        let mut builds = self.lock();
        if builds.waiting.len() >= MAX_WAITING {
            let message = format!("{MAX_WAITING} templates wait for their build already; try again later");
            return Err(Failure::new(ErrorCode::NoCapacity, message));
        }
        builds.waiting.push_back(template);
        self.changed.notify_all();
        Ok(())
    }

    /// Queues a build that a VM waits for, before those of other templates.
    pub(super) fn push_first(&self, template: TemplateId) -> Result<(), Failure> {
        let mut builds = self.lock();
        if builds.first.len() >= MAX_WAITING {
            let message =
                format!("{MAX_WAITING} VMs wait already for their start without memory; try again later");
            return Err(Failure::new(ErrorCode::NoCapacity, message));
        }
        builds.first.push_back(template);
        self.changed.notify_all();
        Ok(())
    }

    /// Queues the build of a template that existed, whatever waits already.
    pub(super) fn push_again(&self, template: TemplateId) {
        let mut builds = self.lock();
        builds.later.remove(&template);
        if !builds.waiting.contains(&template) && builds.running != Some(template) {
            builds.waiting.push_back(template);
            self.changed.notify_all();
        }
    }

    /// Queues another build of the template whose build runs, after a delay. If a VM waits for it, it comes before those of other
    /// templates again.
    pub(super) fn push_later(&self, template: TemplateId, delay: Duration) {
        let mut builds = self.lock();
        let is_awaited = builds.running == Some(template) && builds.is_awaited;
        builds.later.insert(template, Later { at: Instant::now() + delay, is_awaited });
        self.changed.notify_all();
    }

    /// Waits for the next build, which counts as running until `finish`.
    pub(super) fn next(&self) -> TemplateId {
        let mut builds = self.lock();
        loop {
            let next_due = builds.take_due(Instant::now());
            let first = builds.first.pop_front();
            let is_awaited = first.is_some();
            if let Some(template) = first.or_else(|| builds.waiting.pop_front()) {
                (builds.running, builds.is_awaited) = (Some(template), is_awaited);
                return template;
            }
            builds = match next_due {
                None => self.changed.wait(builds).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    self.changed.wait_timeout(builds, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Ends the build that runs.
    pub(super) fn finish(&self) {
        self.lock().running = None;
        self.changed.notify_all();
    }

    /// Removes a build that waits. `false` if there is none.
    pub(super) fn cancel(&self, template: TemplateId) -> bool {
        let mut builds = self.lock();
        let count = |builds: &Builds| builds.first.len() + builds.waiting.len();
        let before = count(&builds);
        builds.first.retain(|waiting| *waiting != template);
        builds.waiting.retain(|waiting| *waiting != template);
        builds.later.remove(&template).is_some() || count(&builds) < before
    }

    /// Waits until this template is not being built.
    pub(super) fn wait_for_end_of(&self, template: TemplateId) {
        let mut builds = self.lock();
        while builds.running == Some(template) {
            builds = self.changed.wait(builds).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Builds> {
        self.builds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn builds_run_in_the_order_of_their_requests_and_wait_up_to_a_limit() {
        let queue = BuildQueue::default();
        let ids: Vec<TemplateId> = (0..=MAX_WAITING).map(|_| TemplateId::generate()).collect();
        for id in &ids[..MAX_WAITING] {
            queue.push(*id).unwrap();
        }
        assert_eq!(queue.push(ids[MAX_WAITING]).unwrap_err().code, ErrorCode::NoCapacity);
        queue.push_again(ids[0]);
        assert!(queue.cancel(ids[1]) && !queue.cancel(ids[1]));
        assert_eq!([queue.next(), queue.next()], [ids[0], ids[2]]);
    }

    #[test]
    fn a_build_that_a_vm_waits_for_comes_first() {
        let (queue, ids) = (BuildQueue::default(), [(); 4].map(|()| TemplateId::generate()));
        queue.push(ids[0]).unwrap();
        queue.push_first(ids[1]).unwrap();
        queue.push_first(ids[2]).unwrap();
        queue.push_first(ids[3]).unwrap();
        assert!(queue.cancel(ids[2]) && !queue.cancel(ids[2]));
        assert_eq!([queue.next(), queue.next(), queue.next()], [ids[1], ids[3], ids[0]]);
        for _ in 0..MAX_WAITING {
            queue.push_first(TemplateId::generate()).unwrap();
        }
        assert_eq!(queue.push_first(TemplateId::generate()).unwrap_err().code, ErrorCode::NoCapacity);
        queue.push(ids[0]).unwrap();
    }

    #[test]
    fn a_build_that_a_vm_waits_for_comes_first_after_a_delay_too() {
        let (queue, ids) = (BuildQueue::default(), [(); 2].map(|()| TemplateId::generate()));
        queue.push_first(ids[0]).unwrap();
        queue.push(ids[1]).unwrap();
        assert_eq!(queue.next(), ids[0]);
        queue.push_later(ids[0], Duration::ZERO);
        queue.finish();
        assert_eq!([queue.next(), queue.next()], ids);
        // No VM waits for the second one.
        queue.push_later(ids[1], Duration::ZERO);
        queue.finish();
        queue.push(ids[0]).unwrap();
        assert_eq!([queue.next(), queue.next()], ids);
    }

    #[test]
    fn a_build_for_later_waits_until_its_time_and_does_not_delay_others() {
        let (queue, ids) = (BuildQueue::default(), [(); 3].map(|()| TemplateId::generate()));
        queue.push_later(ids[0], Duration::from_millis(1));
        queue.push_later(ids[1], Duration::from_secs(600));
        assert_eq!(queue.next(), ids[0]);
        queue.push_later(ids[2], Duration::from_secs(600));
        // Its parent is ready, or its damage was found: now, and not a second time later.
        queue.push_again(ids[2]);
        assert_eq!(queue.next(), ids[2]);
        assert!(queue.cancel(ids[1]) && !queue.cancel(ids[1]) && !queue.cancel(ids[2]));
    }

    #[test]
    fn the_end_of_a_build_is_waited_for() {
        let (queue, id) = (Arc::new(BuildQueue::default()), TemplateId::generate());
        queue.wait_for_end_of(id);
        queue.push(id).unwrap();
        assert_eq!(queue.next(), id);
        // It runs, so it is not queued a second time.
        queue.push_again(id);
        assert!(!queue.cancel(id));
        let other = Arc::clone(&queue);
        let finishing = thread::spawn(move || other.finish());
        queue.wait_for_end_of(id);
        finishing.join().unwrap();
    }
}
