//! The file in a VM that contains the ticket that the VM was booted for.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use serde_json::json;
use skep_api::{
    AbsolutePath, ErrorCode, Failure,
    files::WriteCondition,
    path::PathEncoding,
    streams::UploadFile,
    tickets::{TICKET_FILE, Ticket},
};
use skep_store::{BootAttempt, TicketStore};

use crate::{Error, vm::VmHandle};

/// Up to this size, in bytes, prerequisites are written completely. The file is in the memory of the guest.
const MAX_FULL_RECORD_BYTES: usize = 4 << 20;
/// Readable by every user in the VM, which works on this ticket only.
const MODE: u32 = 0o644;

/// Writes the file. Called before any command of the VM is started.
///
/// # Errors
/// The store is not available, the ticket is deleted, or the guest refused.
pub(crate) async fn write(vm: &VmHandle, store: &dyn TicketStore, work: &BootAttempt) -> Result<(), Error> {
    let content = content(store, vm, work).await?;
    let upload = UploadFile {
        path: path(TICKET_FILE)?,
        mode: Some(MODE),
        create_parents: true,
        condition: WriteCondition::None,
    };
    let bytes = stream::once(std::future::ready(Ok(Bytes::from(content)))).boxed();
    let guest = vm.running_guest().await.ok_or(skep_channel::Error::Ended)?;
    let (_, nothing) = guest.call_streamed(&upload, Some(bytes)).await?;
    drop(nothing);
    Ok(())
}

/// A path in a VM, from a constant.
pub(crate) fn path(text: &str) -> Result<AbsolutePath, Failure> {
    AbsolutePath::parse("path", text, PathEncoding::Plain)
}

/// `{"ticket": RECORD, "prerequisites": [RECORD...]}`.
async fn content(store: &dyn TicketStore, vm: &VmHandle, work: &BootAttempt) -> Result<Vec<u8>, Error> {
    let account = vm.facts.account;
    let ticket = store.ticket(account, work.ticket, Timestamp::now()).await?;
    let mut file = TicketFile::new(&ticket)?;
    for id in &ticket.dependencies {
        match store.ticket(account, *id, Timestamp::now()).await {
            Ok(prerequisite) => file.add(&prerequisite)?,
            Err(error) if error.code() == ErrorCode::UnknownTicket => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(file.finish())
}

/// Builds the content of the file.
struct TicketFile {
    text: Vec<u8>,
    is_first: bool,
}

impl TicketFile {
    fn new(ticket: &Ticket) -> Result<Self, Failure> {
        let mut text = br#"{"ticket":"#.to_vec();
        text.extend(serde_json::to_vec(ticket).map_err(json_failure)?);
        text.extend(br#","prerequisites":["#);
        Ok(Self { text, is_first: true })
    }

    /// Adds a prerequisite: completely up to the size limit, then only id, title and status, marked as truncated.
    fn add(&mut self, prerequisite: &Ticket) -> Result<(), Failure> {
        let mut record = serde_json::to_vec(prerequisite).map_err(json_failure)?;
        if self.text.len() + record.len() > MAX_FULL_RECORD_BYTES {
            let Ticket { id, title, status, .. } = prerequisite;
            let brief = json!({"id": id, "title": title, "status": status, "truncated": true});
            record = serde_json::to_vec(&brief).map_err(json_failure)?;
        }
        if !self.is_first {
            self.text.push(b',');
        }
        self.is_first = false;
        self.text.extend(record);
        Ok(())
    }

    fn finish(mut self) -> Vec<u8> {
        self.text.extend(b"]}");
        self.text
    }
}

fn json_failure(error: serde_json::Error) -> Failure {
    Failure::new(ErrorCode::Internal, format!("a ticket cannot be written as JSON: {error}"))
}
