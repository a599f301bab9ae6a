//! The requests of the server that concern captures of VMs.

use std::{net::Ipv4Addr, os::fd::OwnedFd};

use skep_api::{TemplateId, VmId};

use crate::{
    AfterCapture, Answer, Error, Request, ServerEnd, StorePurpose, TemplateStatus,
    server_end::{expect_descriptors, unexpected},
};

/// Captures of the keeper at the same time, of all accounts. Each takes memory, and the server drops it after a fork or when it is
/// stored.
pub const MAX_CAPTURES: usize = 64;

impl ServerEnd {
    /// Creates the file into which a VMM saves its devices, for a capture with this id. The descriptor is open for writing
    /// only. If the VM runs on afterwards, the keeper also copies its memory while it runs, so that the copy of
    /// [`Self::capture`] takes less time.
    ///
    /// # Errors
    /// The keeper does not hold the VM, has too many captures, or is gone, the machine lacks memory, or another version of the
    /// engine was installed.
    pub async fn prepare_capture(
        &self,
        vm: VmId,
        capture: TemplateId,
        then: AfterCapture,
    ) -> Result<OwnedFd, Error> {
        match self.request(Request::PrepareCapture { vm, capture, then }).await? {
            (Answer::CapturePrepared, descriptors) => {
                let [state] = expect_descriptors(descriptors)?;
                Ok(state)
            }
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Copies memory and disk of a VM whose processors are stopped and whose devices are saved.
    ///
    /// # Errors
    /// The VM has ended, the machine lacks memory or disk space, or the keeper is gone.
    pub async fn capture(&self, capture: TemplateId) -> Result<(), Error> {
        match self.request(Request::Capture { capture }).await? {
            (Answer::Captured, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Stores a capture on disk, as a template with its id.
    ///
    /// # Errors
    /// The disk is full, the files of the template that the VM was booted from are missing, or the keeper is gone.
    pub async fn store_capture(
        &self,
        capture: TemplateId,
        purpose: StorePurpose,
    ) -> Result<TemplateStatus, Error> {
        match self.request(Request::StoreCapture { capture, purpose }).await? {
            (Answer::Template(status), _) => Ok(status),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Keeps an address for a VM that is paused to disk, until [`ServerEnd::end_reservation`] or the end of the server.
    ///
    /// # Errors
    /// It is no address of a VM, or the keeper is gone.
    pub async fn reserve_address(&self, ip: Ipv4Addr) -> Result<(), Error> {
        match self.request(Request::ReserveAddress { ip }).await? {
            (Answer::AddressReserved, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Ends a reservation. A VM that has the address keeps it.
    ///
    /// # Errors
    /// As [`ServerEnd::reserve_address`].
    pub async fn end_reservation(&self, ip: Ipv4Addr) -> Result<(), Error> {
        match self.request(Request::EndReservation { ip }).await? {
            (Answer::ReservationEnded, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }

    /// Frees a capture. VMs that were launched from it run on.
    ///
    /// # Errors
    /// The keeper is gone.
    pub async fn drop_capture(&self, capture: TemplateId) -> Result<(), Error> {
        match self.request(Request::DropCapture { capture }).await? {
            (Answer::CaptureDropped, _) => Ok(()),
            (other, _) => Err(unexpected(&other)),
        }
    }
}
