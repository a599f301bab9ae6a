//! Fake guests.

use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::stream;
use skep_api::{
    ErrorCode, Failure,
    exec::{ExecEvent, RunCommand},
};
use skep_channel::{
    Content, FreezeReport, FreezeRequest, HandOut, HandOutReport, Identity, IdentityReport, ThawRequest,
    TimeAndSeed,
    guest::{Events, Handler},
};
use tokio::time::sleep;

use crate::fake_keeper::FakeKeeper;

/// A delay after which the server sends the time again.
const LONG: Duration = Duration::from_millis(100);

/// A fake guest that takes any identity, and runs no commands unless its keeper says so.
#[derive(Clone)]
pub(crate) struct FakeGuest(pub(crate) Arc<Mutex<FakeKeeper>>);

impl Handler for FakeGuest {
    fn request_limit(&self) -> usize {
        1 << 20
    }

    async fn set_identity(&self, identity: Identity) -> Result<IdentityReport, Failure> {
        Ok(IdentityReport {
            vm: identity.vm,
            hostname: identity.hostname,
            mac: identity.mac,
            ip: identity.ip,
            prefix_len: identity.prefix_len,
            machine_id: identity.machine_id,
            boot_id: identity.boot_id,
            reseeded: self.0.lock().unwrap().reseeds(),
            clock_step_ms: 0.0,
        })
    }

    async fn hand_out(&self, _: HandOut) -> Result<HandOutReport, Failure> {
        Ok(HandOutReport { reseeded: self.0.lock().unwrap().reseeds(), clock_step_ms: 0.0 })
    }

    async fn set_clock(&self, _: TimeAndSeed) -> Result<HandOutReport, Failure> {
        let is_slow = {
            let mut keeper = self.0.lock().unwrap();
            if keeper.agents_lack_clock {
                return Err(Failure::new(ErrorCode::UnknownRoute, "the agent has no route POST /clock"));
            }
            keeper.clocks_set += 1;
            let is_slow = keeper.slow_clocks > 0;
            keeper.slow_clocks = keeper.slow_clocks.saturating_sub(1);
            is_slow
        };
        if is_slow {
            sleep(LONG).await;
        }
        Ok(HandOutReport { reseeded: true, clock_step_ms: 0.0 })
    }

    async fn freeze(&self, request: FreezeRequest) -> Result<FreezeReport, Failure> {
        let never_freezes = {
            let mut state = self.0.lock().unwrap();
            state.freezes += 1;
            state.never_freezes
        };
        if never_freezes {
            pending::<()>().await;
        }
        Ok(FreezeReport { synced: request.sync })
    }

    async fn thaw(&self, _: ThawRequest) -> Result<(), Failure> {
        self.0.lock().unwrap().thaws += 1;
        Ok(())
    }

    async fn rest(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }

    async fn run(&self, _: &str, _: &str, request: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let runs = {
            let keeper = self.0.lock().unwrap();
            keeper.agents_lack_clock || keeper.runs_commands
        };
        if !runs {
            return pending().await;
        }
        let command: RunCommand = serde_json::from_slice(&request).unwrap();
        self.0.lock().unwrap().commands.push(command.command);
        Ok(ANSWER_OF_COMMAND.into())
    }

    async fn run_streamed(&self, name: &str, _: Bytes, _: Content) -> Result<(Vec<u8>, Content), Failure> {
        Err(Failure::new(ErrorCode::UnknownRoute, name))
    }

    fn start(&self, _: &str, _: RunCommand) -> Result<Events, Failure> {
        if self.0.lock().unwrap().refuses_commands {
            return Err(Failure::new(ErrorCode::Overloaded, "no further commands"));
        }
        Ok(Box::pin(stream::pending()))
    }

    fn attach(&self, _: &str, stdout_offset: u64, _: u64) -> Result<Events, Failure> {
        {
            let mut keeper = self.0.lock().unwrap();
            if !keeper.commands_print {
                return Ok(Box::pin(stream::pending()));
            }
            keeper.printing_since.get_or_insert_with(Instant::now);
        }
        let keeper = Arc::clone(&self.0);
        let piece = Bytes::from_static(&[b'y'; 16 << 10]);
        let offsets = (stdout_offset..).step_by(piece.len());
        Ok(Box::pin(stream::iter(offsets.map(move |offset| {
            keeper.lock().unwrap().bytes_printed += piece.len();
            (offset, ExecEvent::Stdout(piece.clone()))
        }))))
    }

    fn cancel(&self, _: &str) -> Result<(), Failure> {
        Ok(())
    }
}

const ANSWER_OF_COMMAND: &str = r#"{"exit_code":0,"signal":null,"stdout":"","stderr":"","duration_ms":1,"timed_out":false,"truncated":false}"#;
