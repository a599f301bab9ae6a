//! Where webhooks may lead.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::host_or_network;

/// Where webhooks may lead.
#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct Webhooks {
    /// A private network (CIDR), address or host that webhooks may reach besides the public ones, also without https; may
    /// be given several times. Over https they trust the system's CA certificates, or instead those in the file or folder
    /// that the environment names by SSL_CERT_FILE or SSL_CERT_DIR.
    #[arg(
        long, env = "SKEP_WEBHOOK_ALLOW", value_name = "HOST|CIDR", value_delimiter = ',', value_parser = host_or_network
    )]
    #[serde(default)]
    pub(crate) webhook_allow: Vec<String>,
}
