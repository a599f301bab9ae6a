use std::{
    os::fd::OwnedFd,
    sync::atomic::{AtomicU32, Ordering},
};

use async_trait::async_trait;
use skep_engine::{Error, VmmEnd};
use tokio::time::Instant;

use super::*;

/// Reports that as many operations of each kind were done as is set. Without a number it answers never.
#[derive(Default)]
struct FakeMachine {
    done: Mutex<Option<u64>>,
    asked: AtomicU32,
}

impl FakeMachine {
    fn set(&self, done: Option<u64>) {
        *lock(&self.done) = done;
    }
}

fn traffic(number: u64) -> DiskTraffic {
    DiskTraffic { read_bytes: number, written_bytes: number, reads: number, writes: number, flushes: number }
}

#[async_trait]
impl Machine for FakeMachine {
    async fn disk_traffic(&self) -> Result<DiskTraffic, Error> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let done = *lock(&self.done);
        match done {
            Some(number) => Ok(traffic(number)),
            None => std::future::pending().await,
        }
    }

    async fn pause(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn resume(&self) -> Result<(), Error> {
        Ok(())
    }

    async fn is_running(&self) -> Result<bool, Error> {
        Ok(true)
    }

    async fn save_devices(&self, _: OwnedFd) -> Result<(), Error> {
        unreachable!()
    }

    async fn save(&self, _: OwnedFd) -> Result<(), Error> {
        Ok(())
    }

    async fn ended(&self) -> Option<VmmEnd> {
        None
    }
}

/// A machine, and the meter of a VM with that number of operations that are counted already.
fn metered(known: Option<u64>, totals: &DiskTotals) -> (Arc<FakeMachine>, DiskMeter) {
    let machine = Arc::new(FakeMachine::default());
    let shared: Arc<dyn Machine> = machine.clone();
    let meter = DiskMeter::new(Some(&shared), known.map(traffic), totals.clone());
    (machine, meter)
}

#[tokio::test(start_paused = true)]
async fn a_vmm_that_does_not_answer_is_asked_once_and_its_last_sample_is_kept() {
    let totals = DiskTotals::default();
    let (machine, meter) = metered(None, &totals);
    machine.set(Some(5));
    assert_eq!(meter.read().await, Some(traffic(5)));
    machine.set(None);
    let before = Instant::now();
    for _ in 0..5 {
        assert_eq!(meter.read().await, Some(traffic(5)));
    }
    assert_eq!(before.elapsed(), 5 * ANSWER_TIMEOUT);
    assert_eq!(machine.asked.load(Ordering::Relaxed), 2);
    // The control: one that answers is asked each time.
    let (machine, meter) = metered(None, &totals);
    machine.set(Some(1));
    for _ in 0..5 {
        meter.read().await;
    }
    assert_eq!(machine.asked.load(Ordering::Relaxed), 5);
}

#[tokio::test]
async fn totals_contain_what_booted_vms_did_and_of_adopted_ones_what_they_do_from_then_on() {
    let totals = DiskTotals::default();
    let (booted, meter_of_booted) = metered(Some(0), &totals);
    let (adopted, meter_of_adopted) = metered(None, &totals);
    for (in_booted, in_adopted, total) in [(3, 100, 3), (3, 100, 3), (10, 105, 15)] {
        booted.set(Some(in_booted));
        adopted.set(Some(in_adopted));
        meter_of_booted.read().await;
        meter_of_adopted.read().await;
        assert_eq!(totals.read(), traffic(total));
    }
    // The VM has ended; its part of the totals stays.
    drop(booted);
    assert_eq!(meter_of_booted.read().await, Some(traffic(10)));
    assert_eq!(totals.read(), traffic(15));
    // A compromised VMM that counts down or far up neither lowers the totals nor makes them wrap around.
    for wrong in [0, u64::MAX, u64::MAX] {
        adopted.set(Some(wrong));
        meter_of_adopted.read().await;
    }
    assert_eq!(totals.read(), traffic(u64::MAX));
}
