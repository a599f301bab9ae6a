//! Logs of commands that work on tickets.

use std::time::Duration;

use skep_harness::eventually;
use skep_swarm::BootSpec;
use tokio::sync::Mutex;

use crate::fixture::Fixture;

/// The tests of this file run one at a time, because the limit of concurrent writes applies to the whole process.
static ALONE: Mutex<()> = Mutex::const_new(());
/// The documented rate limit, in bytes per second.
const MAX_BYTES_PER_SECOND: f64 = 2.0 * 1024.0 * 1024.0;
/// The documented limit of concurrent writes.
const MAX_WRITES: usize = 2;

/// A swarm with so many VMs, each booted for a ticket with a command that prints without end.
async fn with_printing_vms(count: u32) -> Fixture {
    let fixture = Fixture::new().await;
    let order = BootSpec { command: Some("yes".to_owned()), ..fixture.boot_spec(count) };
    for vm in fixture.boot_with(order).await.unwrap().vms {
        fixture.store.set_ticket(vm.id);
    }
    fixture.keeper(|keeper| keeper.commands_print = true);
    fixture.restart().await
}

async fn end(fixture: Fixture) {
    fixture.swarm.cleanup(&fixture.account, "c").await.unwrap();
    fixture.assert_nothing_left().await;
}

#[tokio::test]
async fn no_more_than_two_logs_are_written_at_once() {
    let _alone = ALONE.lock().await;
    let fixture = with_printing_vms(5).await;
    let log = &fixture.store.log;
    eventually("writes", async || log.under_way() == MAX_WRITES).await;
    for ended in 1..=20 {
        log.allowed.add_permits(1);
        // When one write ends, another begins.
        let begun = ended + MAX_WRITES;
        eventually("the next write", async || log.writes().len() >= begun).await;
        assert_eq!((log.writes().len(), log.under_way()), (begun, MAX_WRITES));
    }
    end(fixture).await;
}

#[tokio::test]
async fn a_command_prints_no_faster_than_its_log_may_be_written() {
    let _alone = ALONE.lock().await;
    let fixture = with_printing_vms(1).await;
    let log = &fixture.store.log;
    log.allowed.add_permits(8);
    eventually("writes", async || log.writes().len() == 9).await;
    let writes = log.writes();
    #[expect(clippy::cast_precision_loss, reason = "a few MiB")]
    let bytes = writes[..8].iter().map(|write| write.bytes as f64).sum::<f64>();
    // A slow machine takes longer, and never less.
    let least = Duration::from_secs_f64(bytes / MAX_BYTES_PER_SECOND);
    let start = fixture.keeper(|keeper| keeper.printing_since).unwrap();
    assert!(writes[8].begun - start >= least, "{bytes} bytes: {writes:?}");

    // The last write does not end, so the command waits as soon as the buffers on the way are full.
    let (mut before, mut unchanged) = (0, 0);
    eventually("the command to wait", async || {
        let printed = fixture.keeper(|keeper| keeper.bytes_printed);
        unchanged = if printed == before { unchanged + 1 } else { 0 };
        before = printed;
        unchanged == 25
    })
    .await;
    let written = writes.iter().map(|write| write.bytes).sum::<usize>();
    assert!(before - written < 4 << 20, "{before} bytes printed, {written} written");
    end(fixture).await;
}
