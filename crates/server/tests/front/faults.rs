//! Which tests were answered a 500: each one fails for it, unless it said that it expects one.

use std::{
    collections::HashSet,
    fmt,
    sync::{Mutex, Once, PoisonError},
    thread,
};

use tracing::field::{Field, Visit};
use tracing_subscriber::{
    Layer,
    layer::{Context, SubscriberExt},
    registry,
};

/// The tests that were answered one, by the name of their thread; servers run in the thread of their test, but for those
/// of tests with threads of their own, which are `None`.
static ANSWERED: Mutex<Vec<(Option<String>, String)>> = Mutex::new(Vec::new());
static EXPECTING: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Begins to look. Only the first call does anything.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Whoever has chosen before has taken the look away; then the test of this file fails.
        let _ = tracing::subscriber::set_global_default(registry().with(Faults));
    });
}

/// Says that this test is about a 500.
pub(crate) fn expect_them() {
    EXPECTING.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(own_name());
}

/// What this test was answered against its will.
pub(crate) fn unexpected() -> Vec<String> {
    let own = own_name();
    if EXPECTING.lock().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|all| all.contains(&own))
    {
        return Vec::new();
    }
    let answered = ANSWERED.lock().unwrap_or_else(PoisonError::into_inner);
    let mine = answered.iter().filter(|(test, _)| test.as_ref().is_none_or(|test| *test == own));
    mine.map(|(_, line)| line.clone()).collect()
}

fn own_name() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

/// Reads the log for answers with status 500.
struct Faults;

impl<S: tracing::Subscriber> Layer<S> for Faults {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        if line.status == Some(500) {
            let test = thread::current().name().filter(|name| !name.starts_with("tokio")).map(str::to_owned);
            ANSWERED.lock().unwrap_or_else(PoisonError::into_inner).push((test, line.text));
        }
    }
}

#[derive(Default)]
struct Line {
    status: Option<u64>,
    text: String,
}

impl Visit for Line {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "status" {
            self.status = Some(value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text.push_str(&format!("{field}={value:?} "));
    }
}

#[test]
fn a_fault_is_noticed_and_may_be_expected() {
    watch();
    let (status, duration_ms) = (500_u16, 1.0);
    tracing::error!(request_id = "x", status, duration_ms, "request x: a test");
    assert_eq!(unexpected().len(), 1);
    expect_them();
    assert!(unexpected().is_empty());
}
