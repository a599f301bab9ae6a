//! A fake driver of VMMs.

use std::{
    future::pending,
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use skep_api::VmId;
use skep_engine::{DiskTraffic, Driver, Machine, VmmEnd};
use tokio::{io::AsyncReadExt, net::UnixStream, time::sleep};

use crate::fake_keeper::FakeKeeper;

/// The length of an id such as `vm_01jv0000000000000000000000`.
const VM_ID_BYTES: usize = 29;

/// A fake driver that restores immediately and reports no shutdown reason.
pub(crate) struct FakeDriver {
    pub(crate) keeper: Arc<Mutex<FakeKeeper>>,
}

struct FakeMachine {
    vm: VmId,
    keeper: Arc<Mutex<FakeKeeper>>,
    _monitor: UnixStream,
}

impl FakeDriver {
    async fn machine(&self, mut monitor: UnixStream) -> FakeMachine {
        let mut vm = [0; VM_ID_BYTES];
        monitor.read_exact(&mut vm).await.unwrap();
        let vm = std::str::from_utf8(&vm).unwrap().parse().unwrap();
        FakeMachine { vm, keeper: Arc::clone(&self.keeper), _monitor: monitor }
    }
}

impl FakeMachine {
    fn set_running(&self, command: &'static str, runs: bool) -> Result<(), skep_engine::Error> {
        let mut keeper = self.keeper.lock().unwrap();
        if if runs { keeper.refuses_starts } else { keeper.refuses_stops } {
            return Err(skep_engine::Error::Refused { command, reason: "a test".to_owned() });
        }
        let closed = || skep_engine::Error::MonitorClosed("a test".to_owned());
        keeper.vmms.get_mut(&self.vm).ok_or_else(closed)?.runs = runs;
        Ok(())
    }
}

#[async_trait]
impl Driver for FakeDriver {
    async fn restore(&self, monitor: UnixStream, _: OwnedFd) -> Result<Box<dyn Machine>, skep_engine::Error> {
        let machine = self.machine(monitor).await;
        machine.set_running("cont", true)?;
        Ok(Box::new(machine))
    }

    async fn attach(&self, monitor: UnixStream) -> Result<Box<dyn Machine>, skep_engine::Error> {
        Ok(Box::new(self.machine(monitor).await))
    }
}

#[async_trait]
impl Machine for FakeMachine {
    async fn pause(&self) -> Result<(), skep_engine::Error> {
        self.set_running("stop", false)
    }

    async fn resume(&self) -> Result<(), skep_engine::Error> {
        self.keeper.lock().unwrap().resumes += 1;
        while self.keeper.lock().unwrap().holds_resumes {
            sleep(Duration::from_millis(1)).await;
        }
        self.set_running("cont", true)
    }

    async fn is_running(&self) -> Result<bool, skep_engine::Error> {
        Ok(self.keeper.lock().unwrap().runs(self.vm))
    }

    async fn disk_traffic(&self) -> Result<DiskTraffic, skep_engine::Error> {
        Ok(DiskTraffic::default())
    }

    async fn save_devices(&self, _: OwnedFd) -> Result<(), skep_engine::Error> {
        Ok(())
    }

    async fn save(&self, _: OwnedFd) -> Result<(), skep_engine::Error> {
        Ok(())
    }

    async fn ended(&self) -> Option<VmmEnd> {
        pending().await
    }
}
