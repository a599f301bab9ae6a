//! Reloads the settings for a server that replaces the running one.

use std::{ffi::OsString, sync::Arc};

use skep_api::HelperKind;
use skep_keeper::{ReadServerConfig, ServerConfig, TlsFiles};

use crate::{
    cli::Cli,
    helper_process, output,
    settings::{self, Settings, TlsSource},
    verbs::{Verb, serve},
};

/// What the keeper starts a server with, for these settings.
///
/// # Errors
/// The certificate files cannot be read.
pub(crate) fn server_configuration(settings: &Settings) -> anyhow::Result<ServerConfig> {
    let tls = match settings.transport.tls_source()? {
        TlsSource::Files { certificate, key } => Some(Arc::new(TlsFiles::open(certificate, key)?)),
        TlsSource::PlainText | TlsSource::SelfSigned => None,
    };
    let commands_helper = helper_process::helper_order(settings, HelperKind::Commands);
    let git_helper = helper_process::helper_order(settings, HelperKind::Git);
    Ok(ServerConfig { settings: serde_json::to_value(settings)?, tls, commands_helper, git_helper })
}

/// The function by which the keeper reloads the settings; it parses the command line and file of this process again.
pub(crate) fn reloader(before: Settings) -> ReadServerConfig {
    Arc::new(move || {
        let settings = reload_settings().map_err(|error| output::one_line(&error))?;
        if let Some(why) = needs_keeper_restart(&before, &settings) {
            return Err(why);
        }
        server_configuration(&settings).map_err(|error| output::one_line(&error))
    })
}

/// The settings that a server started now would use.
///
/// # Errors
/// They are invalid; the message names the setting.
pub(crate) fn reload_settings() -> anyhow::Result<Settings> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let Cli { verb: Verb::Serve(verb) } = settings::try_parse::<Cli>(&arguments)? else {
        anyhow::bail!("this process was not started by `skep serve`");
    };
    let settings = verb.settings.resolved()?;
    match serve::check(&settings).into_iter().next() {
        Some((name, error)) => Err(error.context(format!("`{name}`"))),
        None => Ok(settings),
    }
}

/// The reason why a restart of the server alone does not suffice: the keeper uses this setting itself.
pub(crate) fn needs_keeper_restart(before: &Settings, now: &Settings) -> Option<String> {
    let shown = |settings: &Settings| -> [(&'static str, String); 24] {
        let limits = &settings.egress.egress_limits;
        [
            ("listen", settings.listen.to_string()),
            ("metrics_listen", format!("{:?}", settings.metrics_listen)),
            ("data_dir", settings.data_dir.display().to_string()),
            ("image_dir", settings.image_dir().display().to_string()),
            ("user", format!("{:?}", settings.user)),
            ("max_vms", format!("{:?}", settings.capacity.max_vms)),
            ("memory_mb", format!("{:?}", settings.capacity.memory_mb)),
            ("memory_overcommit", settings.capacity.memory_overcommit.to_string()),
            ("memory_guard", format!("{:?}", settings.capacity.memory_guard).to_lowercase()),
            ("egress", format!("{:?}", settings.egress.egress).to_lowercase()),
            ("egress_allow", format!("{:?}", settings.egress.egress_allow)),
            ("egress_deny", format!("{:?}", settings.egress.egress_deny)),
            ("egress_public", format!("{:?}", settings.egress.egress_public)),
            ("egress_resolver", format!("{:?}", settings.egress.egress_resolver)),
            ("egress_connections", limits.egress_connections.to_string()),
            ("egress_connections_of_all", limits.egress_connections_of_all.to_string()),
            ("egress_new_connections", limits.egress_new_connections.to_string()),
            ("egress_mbit", limits.egress_mbit.to_string()),
            ("egress_idle", limits.egress_idle.to_string()),
            ("base_memory_mb", settings.base.base_memory_mb.to_string()),
            ("base_vcpus", settings.base.base_vcpus.to_string()),
            ("base_disk_mb", settings.base.base_disk_mb.to_string()),
            ("vm_disk_mbps", settings.vm_disk.vm_disk_mbps.to_string()),
            ("vm_disk_iops", settings.vm_disk.vm_disk_iops.to_string()),
        ]
    };
    let changed = shown(before).into_iter().zip(shown(now)).find(|(before, now)| before != now);
    changed.map(|((name, before), (_, now))| {
        format!("`{name}` changed from {before} to {now}, which requires a new start of `skep serve`")
    })
}
