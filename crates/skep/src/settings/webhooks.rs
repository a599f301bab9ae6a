//! Settings for webhooks: which private hosts they may connect to.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::host_or_network;

#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct Webhooks {
    /// Private network (CIDR), address or host name that webhooks may connect to, besides public ones, also without https;
    /// may be given several times. Over https, webhooks trust the CA certificates of the system, or those that the
    /// environment variables SSL_CERT_FILE or SSL_CERT_DIR name.
    #[arg(
        long, env = "SKEP_WEBHOOK_ALLOW", value_name = "HOST|CIDR", value_delimiter = ',', value_parser = host_or_network
    )]
    #[serde(default)]
    pub(crate) webhook_allow: Vec<String>,
}
