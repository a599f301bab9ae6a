//! Metrics: the text is checked against its format, and counters change with requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use reqwest::{Method, Response, StatusCode, header};
use serde_json::json;
use skep_accounts::scopes_of;
use skep_api::{Role, Scope};

use crate::{
    clock::advance_clock,
    harness::{Skep, refused},
    open_metrics::{Samples, read},
};

const OPEN_METRICS: &str = "application/openmetrics-text";

async fn whole(skep: &Skep) -> Samples {
    let request = skep.request(Method::GET, "/metrics").header(header::ACCEPT, OPEN_METRICS);
    text_of(request.send().await.unwrap()).await
}

async fn text_of(response: Response) -> Samples {
    assert_eq!(response.status(), 200);
    let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    assert!(kind.starts_with(OPEN_METRICS), "{kind}");
    let text = response.text().await.unwrap();
    read(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[tokio::test]
async fn the_whole_text_is_open_metrics() {
    let skep = Skep::start().await;
    skep.get("/api/whoami").await;
    let samples = whole(&skep).await;
    for (name, labels) in [
        ("skep_build_info", "api=\"1\""),
        ("skep_http_request_duration_seconds_bucket", "le=\"+Inf\",method=\"GET\",route=\"/api/whoami\""),
        ("skep_vms", "state=\"paused\""),
        ("skep_vm_boots_total", "source=\"pool\""),
        ("skep_vm_ends_total", "reason=\"out_of_memory\""),
        ("skep_pool_target_vms", "template=\"base\""),
        ("skep_jails", "owner=\"pool\""),
        ("skep_egress_connections", ""),
        ("skep_egress_names", ""),
        ("skep_egress_sent_bytes_total", ""),
        ("skep_egress_received_bytes_total", ""),
        ("skep_egress_refused_total", "reason=\"policy\""),
        ("skep_egress_refused_total", "reason=\"limit\""),
        ("skep_store_commit_duration_seconds_count", ""),
        ("process_resident_memory_bytes", ""),
        ("process_open_fds", ""),
    ] {
        assert!(samples.has(name, labels), "{name}{{{labels}}} is missing in {:?}", samples.names());
    }
    assert_eq!(samples.value("skep_store_up", &[]), 1.0);
    assert_eq!(samples.value("skep_swarm_up", &[]), 0.0);
    assert!(samples.value("skep_uptime_seconds", &[]) > 0.0);
    assert!(samples.value("process_resident_memory_bytes", &[]) > 1e6);
}

#[tokio::test]
async fn counters_move_with_what_happens() {
    let skep = Skep::start().await;
    let before = whole(&skep).await;
    for _ in 0..3 {
        skep.get("/api/whoami").await;
    }
    assert_eq!(skep.post("/api/keys", "{\"name\": \"ci\", \"role\": \"agent\"}").await.status(), 201);
    refused(skep.bare(Method::GET, "/api/keys").send().await.unwrap()).await;
    refused(skep.get("/no/such/path").await).await;
    let after = whole(&skep).await;
    let grown = |name: &str, labels: &[(&str, &str)]| after.value(name, labels) - before.value(name, labels);
    let whoami = [("method", "GET"), ("route", "/api/whoami")];
    assert_eq!(grown("skep_http_requests_total", &[&whoami[..], &[("status", "200")]].concat()), 3.0);
    assert_eq!(grown("skep_http_request_duration_seconds_count", &whoami), 3.0);
    let created = [("method", "POST"), ("route", "/api/keys"), ("status", "201")];
    assert_eq!(grown("skep_http_requests_total", &created), 1.0);
    let refused = [("method", "GET"), ("route", "/api/keys"), ("status", "401")];
    assert_eq!(grown("skep_http_requests_total", &refused), 1.0);
    assert_eq!(grown("skep_http_refusals_total", &[("code", "missing_token")]), 1.0);
    assert_eq!(grown("skep_http_refusals_total", &[("code", "unknown_route")]), 1.0);
    assert!(grown("skep_store_commit_duration_seconds_count", &[]) >= 1.0);
    assert!(grown("skep_store_commit_commands_sum", &[]) >= 1.0);
    assert_eq!(after.value("skep_http_requests_in_flight", &[]), 1.0, "the look itself");
}

#[tokio::test]
async fn tickets_are_counted_by_account_and_state() {
    let skep = Skep::start().await;
    skep.other_account("other").await;
    let first = skep.simple("first").await;
    skep.ticket(json!({"title": "waits", "dependencies": [first]})).await;
    let held = skep.simple("held").await;
    skep.changed(&held, json!({"assignee": "agent-7"})).await;
    let given_back = skep.simple("given back").await;
    skep.changed(&given_back, json!({"assignee": "agent-7"})).await;
    skep.changed(&given_back, json!({"status": "pending"})).await;
    let failed = skep.simple("failed").await;
    skep.changed(&failed, json!({"status": "failed"})).await;
    let samples = whole(&skep).await;
    let tickets = |account, state| samples.value("skep_tickets", &[("account", account), ("state", state)]);
    for (state, count) in
        [("waiting", 1.0), ("ready", 2.0), ("in_progress", 1.0), ("completed", 0.0), ("failed", 1.0)]
    {
        assert_eq!((tickets("default", state), tickets("other", state)), (count, 0.0), "{state}");
    }
    let ended = |samples: &Samples, outcome| {
        samples.value("skep_ticket_attempts_total", &[("account", "default"), ("outcome", outcome)])
    };
    assert_eq!((ended(&samples, "released"), ended(&samples, "lease_expired")), (1.0, 0.0));
    assert_eq!(samples.value("skep_ticket_oldest_ready_seconds", &[("account", "other")]), 0.0);
    // A completion makes the other ticket ready, and an expired lease is counted.
    skep.changed(&first, json!({"status": "completed"})).await;
    let lapses = skep.ticket(json!({"title": "lapses", "labels": ["lapses"]})).await;
    skep.changed(&lapses, json!({"assignee": "agent-8", "lease_ms": 5_000})).await;
    advance_clock(Duration::from_secs(5)).await;
    let waits = json!({"labels": ["lapses"], "wait_ms": 60_000}).to_string();
    assert_eq!(skep.post("/api/tickets/claim", &waits).await.status(), 200);
    let database = rusqlite::Connection::open(skep.data.path().join("skep.db")).unwrap();
    let hour = "UPDATE tickets SET ready_at = ready_at - 3600000 WHERE ready_at IS NOT NULL";
    assert_eq!(database.execute(hour, []).unwrap(), 2);
    let samples = whole(&skep).await;
    assert_eq!(ended(&samples, "lease_expired"), 1.0);
    let ready = [("account", "default"), ("state", "ready")];
    assert_eq!(samples.value("skep_tickets", &ready), 2.0);
    assert!(samples.value("skep_ticket_oldest_ready_seconds", &[("account", "default")]) >= 3_600.0);
}

#[tokio::test]
async fn vms_are_counted_by_account_and_state() {
    let skep = Skep::start().await;
    skep.other_account("other").await;
    crate::tickets::vms::vm(&skep, 1).await;
    let samples = whole(&skep).await;
    let vms = |account, state| samples.value("skep_account_vms", &[("account", account), ("state", state)]);
    assert_eq!((vms("default", "running"), vms("default", "paused")), (1.0, 0.0));
    assert_eq!((vms("other", "running"), vms("other", "paused")), (0.0, 0.0));
    let memory = |account| samples.value("skep_account_vms_memory_bytes", &[("account", account)]);
    assert!(memory("default") >= f64::from(1 << 20), "{}", memory("default"));
    assert_eq!(memory("other"), 0.0);
}

/// Otherwise callers could fill the memory of the server and of Prometheus with label values.
#[tokio::test]
async fn callers_make_no_series() {
    let skep = Skep::start().await;
    let probe = || async {
        for path in ["/api/keys/key_x", "/nowhere"] {
            skep.get(path).await;
            skep.request("BREW".parse().unwrap(), path).send().await.unwrap();
        }
    };
    probe().await;
    whole(&skep).await;
    let before = whole(&skep).await.len();
    for i in 0..20 {
        for path in [format!("/api/keys/key_{i}"), format!("/nowhere/{i}?a={i}"), format!("/{i}/metrics")] {
            skep.get(&path).await;
            skep.request(format!("BREW{i}").parse().unwrap(), &path).send().await.unwrap();
        }
    }
    let after = whole(&skep).await;
    assert_eq!(after.len(), before, "{:?}", after.names());
    assert!(after.has("skep_http_requests_total", "method=\"OTHER\""));
    assert!(after.has("skep_http_requests_total", "route=\"unmatched\""));
    // The control: the first request of a route creates a series.
    skep.get("/api/swarm/status").await;
    assert!(whole(&skep).await.len() > before);
}

#[tokio::test]
async fn an_account_sees_only_its_own_metrics() {
    let skep = Skep::start().await;
    let other = skep.other_account("other").await;
    let key = skep.key_of(&other, &[Scope::MetricsRead]).await;
    let request = skep.bare(Method::GET, "/metrics").bearer_auth(key).header(header::ACCEPT, OPEN_METRICS);
    let samples = text_of(request.send().await.unwrap()).await;
    let expected = BTreeSet::from([
        "skep_vms",
        "skep_vms_memory_bytes",
        "skep_tickets",
        "skep_ticket_attempts_total",
        "skep_ticket_oldest_ready_seconds",
    ]);
    assert_eq!(samples.names().into_iter().collect::<BTreeSet<_>>(), expected);
    assert!(
        samples.has("skep_tickets", "account=\"other\"")
            && !samples.has("skep_tickets", "account=\"default\"")
    );
    // The control: a key of `default` with that scope alone sees all.
    let (key, _) = skep.key(&[Scope::MetricsRead]).await;
    let request = skep.bare(Method::GET, "/metrics").bearer_auth(key).header(header::ACCEPT, OPEN_METRICS);
    assert!(text_of(request.send().await.unwrap()).await.names().contains(&"skep_http_requests_total"));
    let agent = scopes_of(Role::Agent, "default");
    let (key, _) = skep.key(&agent).await;
    let agent = skep.bare(Method::GET, "/metrics").bearer_auth(key).send().await.unwrap();
    assert_eq!(refused(agent).await.code, "scope_missing");
}

#[tokio::test]
async fn a_listener_of_its_own_needs_no_key_and_has_nothing_else() {
    let skep = Skep::start().await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = |path: &str| http.get(format!("http://{}{path}", skep.metrics_address));
    let samples = text_of(ask("/metrics").header(header::ACCEPT, OPEN_METRICS).send().await.unwrap()).await;
    assert!(samples.has("skep_build_info", ""));
    for path in ["/", "/api/health", "/api/whoami", "/metrics/"] {
        let response = ask(path).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{path}");
    }
    // A web page in a browser on this machine, by a name that resolves to this machine (DNS rebinding).
    let foreign = ask("/metrics").header(header::HOST, "metrics.example.com").send().await.unwrap();
    assert_eq!(foreign.status(), StatusCode::BAD_REQUEST);
    assert_eq!(skep.bare(Method::GET, "/metrics").send().await.unwrap().status(), 401, "the API wants a key");
}

#[tokio::test]
async fn the_older_format_says_the_same() {
    let skep = Skep::start().await;
    skep.get("/api/whoami").await;
    let response = skep.get("/metrics").await;
    assert!(
        response.headers()[header::CONTENT_TYPE].to_str().unwrap().starts_with("text/plain; version=0.0.4")
    );
    let text = response.text().await.unwrap();
    let mut types = BTreeMap::new();
    for line in text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            assert!(types.insert(name, kind).is_none(), "{name} twice");
        }
    }
    assert_eq!(types["skep_http_requests_total"], "counter");
    assert_eq!(types["skep_build_info"], "gauge");
    assert_eq!(types["skep_vm_boot_ready_seconds"], "histogram");
    assert!(!text.contains("# EOF") && !text.contains("# UNIT") && text.ends_with('\n'));
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| {
            let family = name.strip_suffix(suffix)?;
            (types.get(family) == Some(&"histogram")).then_some(family)
        });
        assert!(types.contains_key(family.unwrap_or(name)), "{name} has no type");
    }
}

/// The dashboard and the alerts are written by hand: every metric that they name must exist.
#[tokio::test]
async fn what_dashboard_and_alerts_name_is_there() {
    let skep = Skep::start().await;
    skep.get("/api/whoami").await;
    let samples = whole(&skep).await;
    let there = samples.names();
    let dashboard = include_str!("../../packaging/grafana/skep.json");
    let alerts = include_str!("../../packaging/prometheus/skep.rules.yml");
    serde_json::from_str::<serde_json::Value>(dashboard).unwrap();
    for (file, text) in [("dashboard", dashboard), ("alerts", alerts)] {
        let named = metrics_in(text);
        assert!(named.len() > 5, "{file}: {named:?}");
        for name in named {
            assert!(there.contains(&name), "{file} names {name}, which is not there: {there:?}");
        }
    }
    assert_eq!(metrics_in("rate(skep_nothing_total[5m])"), BTreeSet::from(["skep_nothing_total"]));
}

fn metrics_in(text: &str) -> BTreeSet<&str> {
    let names = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    names.filter(|word| word.starts_with("skep_") || word.starts_with("process_")).collect()
}
