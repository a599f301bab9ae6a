//! Handles the requests of the server.

use std::{io, sync::Arc};

use bytes::Bytes;
use skep_api::{Failure, exec::RunCommand};
use skep_channel::{
    Content, Ground, HandOut, HandOutReport, Identity, IdentityReport,
    guest::{Events, Handler},
};
use skep_workspace::{Commands, Output, Place, run_by_name, run_streamed_by_name};

use crate::{Error, HelperOrder, executes, fences, place, readable};

/// The longest request in bytes, the same as in a VM with enough memory.
const REQUEST_BYTES: usize = 64 << 20;

/// The helper's state. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Helper {
    bare: Place,
    order: Arc<HelperOrder>,
    /// The workspace for the account of the current request.
    here: Option<Place>,
}

impl Helper {
    pub(crate) fn new(order: HelperOrder) -> io::Result<Self> {
        Ok(Self { bare: place(&order)?, order: Arc::new(order), here: None })
    }

    pub(crate) fn commands(&self) -> Commands {
        self.bare.commands().clone()
    }

    fn here(&self) -> Result<&Place, Error> {
        self.here.as_ref().ok_or(Error::NoGround)
    }
}

impl Handler for Helper {
    /// The fence is made for each request: a root may be another folder by now.
    fn on(&self, ground: Ground) -> Result<Self, Failure> {
        let (roots, write) = (ground.roots.clone(), self.order.scratch.clone());
        let (execute, read) = (executes(&self.order), readable(&self.order));
        let fence = fences::fence(&fences::Reach { roots, write, execute, read })?;
        Ok(Self { here: Some(self.bare.for_account(ground.roots, fence)), ..self.clone() })
    }

    fn request_limit(&self) -> usize {
        REQUEST_BYTES
    }

    async fn take_identity(&self, _: Identity) -> Result<IdentityReport, Failure> {
        Err(Error::NoVm.into())
    }

    async fn hand_out(&self, _: HandOut) -> Result<HandOutReport, Failure> {
        Err(Error::NoVm.into())
    }

    async fn rest(&self) -> Result<(), Failure> {
        self.bare.commands().rest().await;
        Ok(())
    }

    async fn settle(&self) -> Result<(), Failure> {
        Err(Error::NoVm.into())
    }

    async fn run(&self, call: &str, name: &str, request: Vec<u8>) -> Result<Vec<u8>, Failure> {
        Ok(run_by_name(name, &request, &self.here()?.for_call(call)).await?)
    }

    async fn run_streamed(
        &self,
        name: &str,
        request: Bytes,
        content: Content,
    ) -> Result<(Vec<u8>, Content), Failure> {
        Ok(run_streamed_by_name(name, &request, content, self.here()?).await?)
    }

    fn start(&self, id: &str, command: RunCommand) -> Result<Events, Failure> {
        let place = self.here()?;
        Ok(events(place.commands().start(id, &command, place)?.attach(0, 0)))
    }

    fn attach(&self, id: &str, stdout_offset: u64, stderr_offset: u64) -> Result<Events, Failure> {
        Ok(events(self.bare.commands().find(id)?.attach(stdout_offset, stderr_offset)))
    }

    fn cancel(&self, id: &str) -> Result<(), Failure> {
        self.bare.commands().find(id)?.cancel();
        Ok(())
    }
}

fn events(output: Output) -> Events {
    Box::pin(futures_util::stream::unfold(output, async |mut output| {
        let event = output.next().await?;
        Some((event, output))
    }))
}
