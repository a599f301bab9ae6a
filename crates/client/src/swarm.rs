//! Requests of `/api/swarm`. A VM is given as text: its process id, id or name, or another reference that the API
//! accepts.

use skep_api::{
    egress::EgressReport,
    swarm::{
        BootAnswer, BootRequest, ChangeRequest, CleanupAnswer, Console, DeleteAnswer, PauseRequest,
        ResumeRequest, SnapshotRequest, SwarmStatus, Vm, VmList, VmMetrics,
    },
    templates::Template,
};

use crate::{Answered, Client, Result, client::encode_segment};

impl Client {
    /// `GET /api/swarm/status`: the account's VMs that are not on disk, at most
    /// [`MAX_LISTED_VMS`](skep_api::swarm::MAX_LISTED_VMS), and the state of the machine.
    ///
    /// # Errors
    /// Those of every request: see [`crate::Error`].
    pub async fn swarm(&self) -> Result<Answered<SwarmStatus>> {
        self.get("api/swarm/status").await
    }

    /// `GET /api/vms`: a page of at most `limit` VMs that have not ended, newest first. `cursor` is the `next_cursor` of the
    /// previous page.
    ///
    /// # Errors
    /// `invalid_value`, and those of every request: see [`crate::Error`].
    pub async fn vms(&self, limit: u32, cursor: Option<&str>) -> Result<Answered<VmList>> {
        let mut path = format!("api/vms?limit={limit}");
        if let Some(cursor) = cursor {
            path = format!("{path}&cursor={}", encode_segment(cursor));
        }
        self.get(&path).await
    }

    /// `GET /api/vms?state=ended`: a page of at most `limit` ended VMs, the most recently ended first.
    ///
    /// # Errors
    /// Those of every request: see [`crate::Error`].
    pub async fn ended_vms(&self, limit: u32) -> Result<Answered<VmList>> {
        self.get(&format!("api/vms?state=ended&limit={limit}")).await
    }

    /// `POST /api/swarm/boot`: boots VMs.
    ///
    /// # Errors
    /// `unknown_template`, `quota_exceeded`, `no_capacity`, `swarm_unavailable`, and those of every request.
    pub async fn boot(&self, request: &BootRequest) -> Result<Answered<BootAnswer>> {
        self.post("api/swarm/boot", request).await
    }

    /// `POST /api/swarm/cleanup`: ends all VMs of the account.
    ///
    /// # Errors
    /// `swarm_unavailable`, and those of every request.
    pub async fn cleanup(&self) -> Result<Answered<CleanupAnswer>> {
        self.post("api/swarm/cleanup", &serde_json::Map::new()).await
    }

    /// `GET /api/swarm/vm/{pid}`: the record of a VM.
    ///
    /// # Errors
    /// `unknown_vm`, and those of every request.
    pub async fn vm(&self, vm: &str) -> Result<Answered<Vm>> {
        self.get(&format!("api/swarm/vm/{}", encode_segment(vm))).await
    }

    /// `DELETE /api/swarm/vm/{pid}`: ends a VM.
    ///
    /// # Errors
    /// `unknown_vm`, and those of every request.
    pub async fn end_vm(&self, vm: &str) -> Result<Answered<DeleteAnswer>> {
        self.delete(&format!("api/swarm/vm/{}", encode_segment(vm))).await
    }

    /// `PATCH /api/swarm/vm/{pid}`: changes time to live, metadata or name of a VM.
    ///
    /// # Errors
    /// `unknown_vm`, and those of every request.
    pub async fn change_vm(&self, vm: &str, request: &ChangeRequest) -> Result<Answered<Vm>> {
        self.patch(&format!("api/swarm/vm/{}", encode_segment(vm)), request).await
    }

    /// `POST /api/swarm/vm/{pid}/pause`: stops the processors of a VM.
    ///
    /// # Errors
    /// `unknown_vm`, `vm_ended`, `guest_timeout`, and those of every request.
    pub async fn pause_vm(&self, vm: &str, request: &PauseRequest) -> Result<Answered<Vm>> {
        self.post(&format!("api/swarm/vm/{}/pause", encode_segment(vm)), request).await
    }

    /// `POST /api/swarm/vm/{pid}/snapshot`: stores a VM as a template.
    ///
    /// # Errors
    /// `unknown_vm`, `vm_paused`, `name_taken`, `guest_timeout`, `no_capacity`, and those of every request.
    pub async fn snapshot_vm(&self, vm: &str, request: &SnapshotRequest) -> Result<Answered<Template>> {
        self.post(&format!("api/swarm/vm/{}/snapshot", encode_segment(vm)), request).await
    }

    /// `POST /api/swarm/vm/{pid}/fork`: boots copies of a VM. The request has no template.
    ///
    /// # Errors
    /// `unknown_vm`, `vm_paused`, `quota_exceeded`, `no_capacity`, `guest_timeout`, and those of every request.
    pub async fn fork_vm(&self, vm: &str, request: &BootRequest) -> Result<Answered<BootAnswer>> {
        self.post(&format!("api/swarm/vm/{}/fork", encode_segment(vm)), request).await
    }

    /// `POST /api/swarm/vm/{pid}/resume`: starts the processors of a paused VM, or a VM that is paused to disk.
    ///
    /// # Errors
    /// `unknown_vm`, `vm_ended`, `vm_not_on_disk`, `template_not_ready`, `template_damaged`, `guest_timeout`, and those of every
    /// request.
    pub async fn resume_vm(&self, vm: &str, request: &ResumeRequest) -> Result<Answered<Vm>> {
        self.post(&format!("api/swarm/vm/{}/resume", encode_segment(vm)), request).await
    }

    /// `GET /api/swarm/vm/{pid}/console`: the last part of the serial console's output.
    ///
    /// # Errors
    /// `unknown_vm`, and those of every request.
    pub async fn console(&self, vm: &str) -> Result<Answered<Console>> {
        self.get(&format!("api/swarm/vm/{}/console", encode_segment(vm))).await
    }

    /// `GET /api/swarm/vm/{pid}/metrics`: what the VM uses now.
    ///
    /// # Errors
    /// `unknown_vm`, and those of every request.
    pub async fn vm_metrics(&self, vm: &str) -> Result<Answered<VmMetrics>> {
        self.get(&format!("api/swarm/vm/{}/metrics", encode_segment(vm))).await
    }

    /// `GET /api/swarm/vm/{pid}/egress`: what the VM may connect to outside, and what it tried.
    ///
    /// # Errors
    /// `unknown_vm`, and those of every request.
    pub async fn vm_egress(&self, vm: &str) -> Result<Answered<EgressReport>> {
        self.get(&format!("api/swarm/vm/{}/egress", encode_segment(vm))).await
    }
}
