//! Control of QEMU over its monitor.

use std::{os::fd::OwnedFd, time::Duration};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::{net::UnixStream, sync::watch::Receiver, time::timeout};

use super::{LAYER_NODE, monitor::Monitor};
use crate::{DiskTraffic, Driver, Error, Machine, VmmEnd};

/// Time limit of a migration. A state of 25 KB loads in milliseconds.
const MIGRATION_TIMEOUT_SECONDS: u64 = 30;
/// The default limit of a migration is 128 MB/s, which makes no sense for a file.
const UNLIMITED_BYTES_PER_SECOND: u64 = 1 << 40;

/// Drives VMMs of any version of QEMU that this machine has had: it neither needs nor runs the program.
#[derive(Debug, Clone, Copy)]
pub struct QemuDriver;

#[async_trait]
impl Driver for QemuDriver {
    async fn restore(&self, monitor: UnixStream, state: OwnedFd) -> Result<Box<dyn Machine>, Error> {
        let monitor = Monitor::open(monitor).await?;
        exclude_memory(&monitor).await?;
        monitor.call_with("getfd", json!({"fdname": "state"}), Some(state)).await?;
        let mut events = monitor.events();
        monitor.call("migrate-incoming", json!({"uri": "fd:state"})).await?;
        let machine = QemuMachine { monitor };
        machine.wait_for_migration(&mut events, "load its state").await?;
        // The VMM was started with its processors stopped. Without that, a guest whose state was saved by
        // `save_devices` would run at the end of the load, before anything can be done about it.
        machine.resume().await?;
        Ok(Box::new(machine))
    }

    async fn attach(&self, monitor: UnixStream) -> Result<Box<dyn Machine>, Error> {
        Ok(Box::new(QemuMachine { monitor: Monitor::open(monitor).await? }))
    }
}

/// Excludes memory from the migration: both sides map the same file, so only device state is transferred.
async fn exclude_memory(monitor: &Monitor) -> Result<(), Error> {
    let capabilities = json!([
        {"capability": "x-ignore-shared", "state": true},
        {"capability": "events", "state": true},
    ]);
    monitor.call("migrate-set-capabilities", json!({"capabilities": capabilities})).await.map(drop)
}

struct QemuMachine {
    monitor: Monitor,
}

#[async_trait]
impl Machine for QemuMachine {
    async fn pause(&self) -> Result<(), Error> {
        self.monitor.call("stop", json!({})).await.map(drop)
    }

    async fn resume(&self) -> Result<(), Error> {
        self.monitor.call("cont", json!({})).await.map(drop)
    }

    async fn is_running(&self) -> Result<bool, Error> {
        let status = self.monitor.call("query-status", json!({})).await?;
        Ok(status.get("running").and_then(Value::as_bool).unwrap_or(false))
    }

    async fn disk_traffic(&self) -> Result<DiskTraffic, Error> {
        let devices = self.monitor.call("query-blockstats", json!({})).await?;
        layer_traffic(&devices).ok_or_else(|| Error::Refused {
            command: "query-blockstats",
            reason: format!("no counters of the disk `{LAYER_NODE}` in its answer"),
        })
    }

    async fn save_devices(&self, state: OwnedFd) -> Result<(), Error> {
        let added = self.monitor.call_with("add-fd", json!({}), Some(state)).await?;
        let set = added["fdset-id"].as_u64().ok_or_else(|| Error::Refused {
            command: "add-fd",
            reason: "no `fdset-id` in its answer".to_owned(),
        })?;
        // Without `live`, QEMU would give up its disks.
        let arguments = json!({"filename": format!("/dev/fdset/{set}"), "live": false});
        let saved = self.monitor.call("xen-save-devices-state", arguments).await;
        let removed = self.monitor.call("remove-fd", json!({"fdset-id": set})).await;
        saved.and(removed).map(drop)
    }

    async fn save(&self, state: OwnedFd) -> Result<(), Error> {
        self.pause().await?;
        exclude_memory(&self.monitor).await?;
        let limit = json!({"max-bandwidth": UNLIMITED_BYTES_PER_SECOND});
        self.monitor.call("migrate-set-parameters", limit).await?;
        self.monitor.call_with("getfd", json!({"fdname": "state"}), Some(state)).await?;
        let mut events = self.monitor.events();
        self.monitor.call("migrate", json!({"uri": "fd:state"})).await?;
        self.wait_for_migration(&mut events, "save its state").await?;
        match self.monitor.call("quit", json!({})).await {
            // It exited before it answered.
            Ok(_) | Err(Error::MonitorClosed(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn ended(&self) -> Option<VmmEnd> {
        self.monitor.closed().await
    }
}

impl QemuMachine {
    /// Waits for the end of a migration, in either direction.
    async fn wait_for_migration(&self, events: &mut Receiver<()>, what: &'static str) -> Result<(), Error> {
        let waiting = async {
            loop {
                match self.migration_status().await?.as_str() {
                    "completed" => return Ok(()),
                    "failed" | "cancelled" => {
                        return Err(Error::Refused {
                            command: "migrate",
                            reason: format!("it did not {what}"),
                        });
                    }
                    _ => {}
                }
                tokio::select! {
                    // Any event: the status is queried again.
                    _ = events.changed() => {}
                    _ = self.monitor.closed() => return Err(Error::MonitorClosed(format!("it did not {what}"))),
                }
            }
        };
        let limit = Duration::from_secs(MIGRATION_TIMEOUT_SECONDS);
        timeout(limit, waiting)
            .await
            .unwrap_or(Err(Error::TimedOut { what, seconds: MIGRATION_TIMEOUT_SECONDS }))
    }

    async fn migration_status(&self) -> Result<String, Error> {
        let answer = self.monitor.call("query-migrate", json!({})).await?;
        Ok(answer.get("status").and_then(Value::as_str).unwrap_or_default().to_owned())
    }
}

/// The counters of the device that has the private layer.
fn layer_traffic(devices: &Value) -> Option<DiskTraffic> {
    let is_layer = |device: &&Value| device["node-name"] == LAYER_NODE;
    let counters = &devices.as_array()?.iter().find(is_layer)?["stats"];
    let counter = |name| counters[name].as_u64();
    Some(DiskTraffic {
        read_bytes: counter("rd_bytes")?,
        written_bytes: counter("wr_bytes")?,
        reads: counter("rd_operations")?,
        writes: counter("wr_operations")?,
        flushes: counter("flush_operations")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counters_are_those_of_the_layer() {
        let stats = json!({
            "rd_bytes": 1, "wr_bytes": 2, "rd_operations": 3, "wr_operations": 4, "flush_operations": 5
        });
        let of_root = json!({"node-name": "root", "stats": {"rd_bytes": 9}});
        let of_layer = json!({"node-name": "layer", "stats": stats});
        let traffic = DiskTraffic { read_bytes: 1, written_bytes: 2, reads: 3, writes: 4, flushes: 5 };
        assert_eq!(layer_traffic(&json!([of_root, of_layer])), Some(traffic));
        // A compromised VMM may answer anything.
        let negative = json!({"node-name": "layer", "stats": {"rd_bytes": -1}});
        for other in
            [json!([of_root]), json!([]), json!({}), json!(null), json!([1, "layer"]), json!([negative])]
        {
            assert_eq!(layer_traffic(&other), None, "{other}");
        }
    }
}
