//! The API as the guests of VMs reach it: at the bridge's address, where the packet filter lets through those that were admitted.

use std::net::SocketAddr;

use skep_api::swarm::URL_VARIABLE;
use skep_keeper_protocol::ServerEnd;

use crate::{BootOrder, Error, vm::BootedVm};

/// Where guests reach the API, and who lets them.
pub(crate) struct ApiAccess {
    keeper: ServerEnd,
    /// `None`: no guest reaches it.
    address: Option<SocketAddr>,
}

impl ApiAccess {
    pub(crate) fn new(keeper: ServerEnd, address: Option<SocketAddr>) -> Self {
        Self { keeper, address }
    }

    /// Puts the address into the variables of a VM that gets a key of its own.
    pub(crate) fn announce(&self, order: &mut BootOrder) {
        if let (Some(address), Some(_)) = (self.address, &order.work) {
            order.env.insert(URL_VARIABLE.to_owned(), format!("http://{address}"));
        }
    }

    /// Admits the VMs of an order that brings a key for them.
    pub(crate) async fn admit_all(&self, booted: &[BootedVm], order: &BootOrder) -> Result<(), Error> {
        for vm in booted.iter().filter(|_| order.work.is_some()) {
            self.admit(vm.facts.id).await?;
        }
        Ok(())
    }

    /// Lets the guest of a VM reach the API until the VM ends.
    pub(crate) async fn admit(&self, vm: skep_api::VmId) -> Result<(), Error> {
        match self.address {
            Some(_) => Ok(self.keeper.admit_to_api(vm).await?),
            None => Ok(()),
        }
    }
}
