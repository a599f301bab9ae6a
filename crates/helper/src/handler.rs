//! Handles the requests of the server.

use std::{io, sync::Arc};

use bytes::Bytes;
use skep_api::{Failure, exec::RunCommand};
use skep_channel::{
    AccountRoots, Content, HandOut, HandOutReport, Identity, IdentityReport, TimeAndSeed,
    guest::{Events, Handler},
};
use skep_host::events;
use skep_workspace::{Commands, Place, run_by_name, run_streamed_by_name};

use crate::{Error, HelperOrder, account_fences, place};

/// The longest request in bytes, the same as in a VM with enough memory.
const REQUEST_BYTES: usize = 64 << 20;

/// The helper's state. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Helper {
    base: Place,
    order: Arc<HelperOrder>,
    /// The workspace for the account of the current request.
    account_place: Option<Place>,
}

impl Helper {
    pub(crate) fn new(order: HelperOrder) -> io::Result<Self> {
        Ok(Self { base: place(&order)?, order: Arc::new(order), account_place: None })
    }

    pub(crate) fn commands(&self) -> Commands {
        self.base.commands().clone()
    }

    fn account_place(&self) -> Result<&Place, Error> {
        self.account_place.as_ref().ok_or(Error::NoAccountRoots)
    }
}

impl Handler for Helper {
    /// The fence is made for each request: a root may be another folder by now.
    fn for_account(&self, account_roots: AccountRoots) -> Result<Self, Failure> {
        let (fence, private_fence) = account_fences(&self.order, account_roots.roots.clone())?;
        let place = self.base.for_account(account_roots.roots, fence);
        let place = match private_fence {
            Some(fence) => place.with_private_fence(fence),
            None => place,
        };
        Ok(Self { account_place: Some(place), ..self.clone() })
    }

    fn request_limit(&self) -> usize {
        REQUEST_BYTES
    }

    async fn set_identity(&self, _: Identity) -> Result<IdentityReport, Failure> {
        Err(Error::NotAVm.into())
    }

    async fn hand_out(&self, _: HandOut) -> Result<HandOutReport, Failure> {
        Err(Error::NotAVm.into())
    }

    async fn set_clock(&self, _: TimeAndSeed) -> Result<HandOutReport, Failure> {
        Err(Error::NotAVm.into())
    }

    async fn rest(&self) -> Result<(), Failure> {
        self.base.commands().remove_ended_groups();
        Ok(())
    }

    async fn settle(&self) -> Result<(), Failure> {
        Err(Error::NotAVm.into())
    }

    async fn run(&self, call: &str, name: &str, request: Vec<u8>) -> Result<Vec<u8>, Failure> {
        Ok(run_by_name(name, &request, &self.account_place()?.for_call(call)).await?)
    }

    async fn run_streamed(
        &self,
        name: &str,
        request: Bytes,
        content: Content,
    ) -> Result<(Vec<u8>, Content), Failure> {
        Ok(run_streamed_by_name(name, &request, content, self.account_place()?).await?)
    }

    fn start(&self, id: &str, command: RunCommand) -> Result<Events, Failure> {
        let place = self.account_place()?;
        let command = place.commands().start(id, &command, place)?;
        Ok(events(command.attach(0, 0)))
    }

    fn attach(&self, id: &str, stdout_offset: u64, stderr_offset: u64) -> Result<Events, Failure> {
        Ok(events(self.base.commands().find(id)?.attach(stdout_offset, stderr_offset)))
    }

    fn cancel(&self, id: &str) -> Result<(), Failure> {
        self.base.commands().find(id)?.cancel();
        Ok(())
    }
}
