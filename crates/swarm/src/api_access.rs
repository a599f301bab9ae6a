//! Access of guests to the API at the bridge's address, which the packet filter allows for admitted VMs only.

use std::net::SocketAddr;

use skep_api::swarm::API_URL_VARIABLE;
use skep_keeper_protocol::ServerEnd;

use crate::{BootSpec, Error, vm::BootedVm};

pub(crate) struct ApiAccess {
    keeper: ServerEnd,
    /// `None` if guests cannot reach the API.
    address: Option<SocketAddr>,
}

impl ApiAccess {
    pub(crate) fn new(keeper: ServerEnd, address: Option<SocketAddr>) -> Self {
        Self { keeper, address }
    }

    /// Sets the environment variable with the API's URL for a VM that gets an API key.
    pub(crate) fn set_url_variable(&self, order: &mut BootSpec) {
        if let (Some(address), Some(_)) = (self.address, &order.work) {
            order.env.insert(API_URL_VARIABLE.to_owned(), format!("http://{address}"));
        }
    }

    /// Admits the VMs of a request that brings an API key for them.
    pub(crate) async fn admit_all(&self, booted: &[BootedVm], order: &BootSpec) -> Result<(), Error> {
        for vm in booted.iter().filter(|_| order.work.is_some()) {
            self.admit(vm.facts.id).await?;
        }
        Ok(())
    }

    /// Allows the guest of a VM to reach the API until the VM ends.
    pub(crate) async fn admit(&self, vm: skep_api::VmId) -> Result<(), Error> {
        match self.address {
            Some(_) => Ok(self.keeper.admit_to_api(vm).await?),
            None => Ok(()),
        }
    }
}
