//! Metrics of a server as it is run: its own listener, and VMs.

use std::net::TcpListener;

use crate::harness::{Skep, temp_dir};

/// The value of a series.
pub(crate) fn value(text: &str, series: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is missing in:\n{text}")).parse().unwrap()
}

#[tokio::test]
async fn metrics_have_a_listener_of_their_own() {
    // The port was free a moment ago. The server refuses port 0, because it could not report the port that it got.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let data_dir = temp_dir();
    let skep = Skep::start_on(data_dir, &["--metrics-listen", &address]).await;
    let answer = reqwest::get(format!("http://{address}/metrics")).await.unwrap();
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.unwrap();
    assert!(value(&text, "process_open_fds") > 3.0 && value(&text, "process_resident_memory_bytes") > 1e6);
    skep.get("/api/whoami").await.ok(200);
}

/// What needs root.
mod root {
    use super::*;

    async fn metrics(skep: &Skep) -> String {
        skep.get("/metrics").await.ok(200).as_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn boots_and_ends_are_counted_where_they_happen() {
        let skep = Skep::start().await;
        let before = metrics(&skep).await;
        assert_eq!(value(&before, "skep_swarm_up"), 1.0);
        let pid = skep.boot_one().await;
        let living = metrics(&skep).await;
        for (series, expected) in [
            ("skep_vms{state=\"running\"}", 1.0),
            ("skep_vm_boots_total{source=\"cold\"}", 1.0),
            ("skep_vm_boot_ready_seconds_count{source=\"cold\"}", 1.0),
            ("skep_jails{owner=\"account\"}", 1.0),
        ] {
            assert_eq!(value(&living, series), expected, "{series}");
            assert_eq!(value(&before, series), 0.0, "{series}");
        }
        assert!(value(&living, "skep_vm_boot_ready_seconds_sum{source=\"cold\"}") > 0.0);
        assert!(value(&living, "skep_reserved_memory_bytes") > 0.0);
        skep.delete(&format!("/api/swarm/vm/{pid}")).await.ok(200);
        let after = metrics(&skep).await;
        assert_eq!(value(&after, "skep_vm_ends_total{reason=\"deleted\"}"), 1.0);
        assert_eq!(
            (value(&after, "skep_vms{state=\"running\"}"), value(&after, "skep_jails{owner=\"account\"}")),
            (0.0, 0.0)
        );
    }
}
