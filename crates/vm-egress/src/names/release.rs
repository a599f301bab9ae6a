//! The numbers of names that no VM uses.

use std::{sync::Arc, time::Duration};

use tokio::{task::yield_now, time::interval};

use super::Names;
use crate::vms::Vms;

/// How often names are noted as used by living VMs, and others as unused.
const RELEASE_INTERVAL: Duration = Duration::from_secs(600);

/// Lets numbers that no VM has used for a day be given to other names, again and again. Connections of VMs go on in between.
pub(crate) async fn release_unused(vms: Arc<Vms>, names: Arc<Names>) {
    let mut interval = interval(RELEASE_INTERVAL);
    loop {
        interval.tick().await;
        for vm in vms.all() {
            vm.with_names(|used| names.keep(vm.account(), used.keys()));
            yield_now().await;
        }
        loop {
            match names.release_some() {
                Ok(true) => yield_now().await,
                Ok(false) => break,
                Err(error) => {
                    tracing::warn!(%error, "names that no VM uses keep their numbers: {error}");
                    break;
                }
            }
        }
    }
}
