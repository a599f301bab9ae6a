//! The rules for requests to the listener of the API for VMs.
//!
//! The packet filter drops packets with another source address than that of the VM that sent them. So the peer address
//! of a connection identifies the VM, and only that VM's key is accepted.

use std::net::IpAddr;

use axum::{extract::Request, middleware::Next, response::Response};
use skep_api::{ErrorCode, Failure};

use super::origin::Origin;
use crate::error::Refusal;

/// Maximum number of open connections of one VM.
pub(crate) const MAX_CONNECTIONS_PER_VM: usize = 32;

/// Checks that the key belongs to the calling VM. `vm_ip` is the address of the VM that the key is bound to.
///
/// # Errors
/// `vm_key_required`.
pub(crate) fn check_key(vm_ip: Option<IpAddr>, peer: Option<IpAddr>) -> Result<(), Failure> {
    match (vm_ip, peer) {
        (Some(vm_ip), Some(peer)) if vm_ip == peer => Ok(()),
        _ => Err(Failure::new(
            ErrorCode::VmKeyRequired,
            "at this address a VM calls with its own key only, which is in its variable SKEP_API_KEY; use that key",
        )),
    }
}

/// The layer around public routes that are not served to VMs.
pub(crate) async fn refuse_vms(request: Request, next: Next) -> Result<Response, Refusal> {
    if Origin::from_extensions(request.extensions()).is_from_vm() {
        let message = "this operation is not served to VMs; use another address of the server";
        return Err(Refusal::new(ErrorCode::VmKeyRequired, message));
    }
    Ok(next.run(request).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_vm_of_the_key_may_call() {
        let ip = |text: &str| text.parse::<IpAddr>().ok();
        assert!(check_key(ip("10.77.0.2"), ip("10.77.0.2")).is_ok());
        for (vm_ip, peer) in [("10.77.0.3", "10.77.0.2"), ("", "10.77.0.2"), ("10.77.0.2", ""), ("", "")] {
            assert_eq!(
                check_key(ip(vm_ip), ip(peer)).unwrap_err().code,
                ErrorCode::VmKeyRequired,
                "{vm_ip} {peer}"
            );
        }
    }
}
