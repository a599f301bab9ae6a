//! The requests of pauses to disk and of resumes from there, to the fake keeper. It stores nothing.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex},
    time::Duration,
};

use skep_api::{ErrorCode, Failure, TemplateId, templates::GuestSize};
use skep_keeper_protocol::{Answer, Answerer, Request, TemplateState, TemplateStatus};

use crate::fake_keeper::FakeKeeper;

pub(crate) async fn answer_for_disk(request: Request, answerer: Answerer, keeper: &Arc<Mutex<FakeKeeper>>) {
    let (answer, descriptors) = match request {
        Request::PrepareCapture { .. } => {
            let state = std::fs::File::create("/dev/null").unwrap();
            (Answer::CapturePrepared, vec![OwnedFd::from(state)])
        }
        Request::Capture { .. } => (Answer::Captured, Vec::new()),
        Request::DropCapture { .. } => (Answer::CaptureDropped, Vec::new()),
        Request::ReserveAddress { .. } => (reserve(&mut keeper.lock().unwrap()), Vec::new()),
        Request::EndReservation { .. } => (Answer::ReservationEnded, Vec::new()),
        Request::StoreCapture { capture, .. } => {
            // In a task of its own, so that other requests are answered meanwhile.
            tokio::spawn(store(capture, answerer, Arc::clone(keeper)));
            return;
        }
        other => unreachable!("{other:?}"),
    };
    answerer.answer(answer, &descriptors).await.unwrap();
}

fn reserve(keeper: &mut FakeKeeper) -> Answer {
    if keeper.reservations_to_refuse > 0 {
        keeper.reservations_to_refuse -= 1;
        return Answer::Refused(Failure::new(ErrorCode::Internal, "/run/skep: refused"));
    }
    keeper.reservations += 1;
    Answer::AddressReserved
}

async fn store(capture: TemplateId, answerer: Answerer, keeper: Arc<Mutex<FakeKeeper>>) {
    keeper.lock().unwrap().captures_held += 1;
    while keeper.lock().unwrap().holds_captures {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    keeper.lock().unwrap().captures_held -= 1;
    let own_bytes = 6 << 20;
    let state = match keeper.lock().unwrap().outdated.clone() {
        Some(reason) => TemplateState::Outdated { reason },
        None => TemplateState::Ready { key: "key".to_owned() },
    };
    let status = TemplateStatus {
        template: capture,
        parent: None,
        size: GuestSize { memory_mb: 128, vcpus: 1, disk_mb: 2048 },
        state,
        size_bytes: own_bytes,
        own_bytes,
    };
    // Fails only if the server is gone.
    let _ = answerer.answer(Answer::Template(status), &[]).await;
}
