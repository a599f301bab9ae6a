//! Records answers with status 500 per test. A test with such an answer fails, unless it expects one.

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

/// The answers with status 500, by the thread name of the test. A server runs in the thread of its test, except for
/// tests with several threads, whose name is `None`.
static ANSWERED: Mutex<Vec<(Option<String>, String)>> = Mutex::new(Vec::new());
static EXPECTING: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// Installs the log subscriber. Only the first call has an effect.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Where another subscriber was installed before, the test of this file fails.
        let _ = tracing::subscriber::set_global_default(registry().with(Faults));
    });
}

/// Marks this test as expecting a 500.
pub fn expect_them() {
    EXPECTING.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(own_name());
}

/// The unexpected answers with status 500 of this test.
pub fn unexpected() -> Vec<String> {
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

/// A subscriber that collects answers with status 500 from the log.
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
