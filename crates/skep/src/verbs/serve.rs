//! `skep serve`: a keeper, which starts the server process. Without root there are no VMs.

use std::{
    env,
    fs::DirBuilder,
    io::{self, IsTerminal},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use clap::Args;
use rustix::process::geteuid;
use skep_image::TemplateBuilder;
use skep_jail::UidRange;
use skep_keeper::{
    DataDir, EgressConfig, KeeperConfig, StartReport, SwarmConfig, User, VmLimits, has_running_vms, holder,
};
use skep_network::Subnet;
use skep_server::RootRules;
use skep_workspace::Location;

use super::bake::template_builder;
use crate::{
    logging, output, reload,
    settings::{EgressUse, LogFormat, MemoryGuard, Settings},
    templates::Shelf,
};

/// Time for requests in progress once the server has to end: slightly more than the server's own limit.
const GRACE: Duration = Duration::from_secs(35);
/// Number of user ids for VMMs, shared by all data directories of a machine.
const VM_UIDS: u32 = 1 << 16;
/// Memory limit of the egress process, in bytes.
const EGRESS_MEMORY_BYTES: u64 = 256 << 20;
/// Environment variables that the server process inherits.
const PASSED_VARIABLES: [&str; 7] =
    ["PATH", "LANG", "TZ", "RUST_BACKTRACE", "SKEP_LANDLOCK_ABI", "SSL_CERT_FILE", "SSL_CERT_DIR"];
const NO_ROOT: &str = "VMs need root: start `skep serve` as root; `skep doctor` says what else is missing";
const EXIT_CODES: &str = "Exit codes: 0 a signal stopped the server; 1 it cannot start, or it failed; 2 the command line is wrong; 128 and the number of the signal that stopped it while it built the base template.";

/// Run the server.
///
/// SIGTERM ends it and leaves the VMs to the next start; Ctrl-C also ends all VMs.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Serve {
    #[command(flatten)]
    pub(crate) settings: Settings,
}

pub(crate) fn run(verb: Serve) -> anyhow::Result<ExitCode> {
    let settings = verb.settings.resolved()?;
    if let Some((_, error)) = check(&settings).into_iter().next() {
        return Err(error);
    }
    logging::init(&settings)?;
    run_keeper(&settings)
}

/// Errors of the settings that depend on each other or on this machine, with the name of the setting.
pub(crate) fn check(settings: &Settings) -> Vec<(&'static str, anyhow::Error)> {
    let metrics = settings.metrics_listen.map_or(Ok(()), skep_server::check_metrics_address);
    let guarded = settings.transport.is_encrypted();
    let checks = [
        ("listen", skep_server::check_address(settings.listen, guarded).map_err(Into::into)),
        ("tls", settings.transport.tls_source().map(drop)),
        ("metrics_listen", metrics.map_err(Into::into)),
        ("log_level", logging::check(settings)),
        ("data_dir", check_data_dir(settings)),
        ("base_memory_mb", check_base(|| settings.base.check_memory(settings.capacity.memory_mb))),
        ("base_vcpus", check_base(|| settings.base.check_vcpus())),
        ("user", check_user(settings)),
        ("root", check_roots(settings)),
    ];
    checks.into_iter().filter_map(|(name, checked)| Some((name, checked.err()?))).collect()
}

/// Checks that the data directory can be created or, if it exists, be used.
fn check_data_dir(settings: &Settings) -> anyhow::Result<()> {
    if Location::of(&settings.data_dir).is_ok_and(|found| found.is_on_kernel_filesystem().unwrap_or(false)) {
        bail!(
            "the data directory {} is on a kernel file system, where no folder can be created; name another by \
             --data-dir",
            settings.data_dir.display()
        );
    }
    if settings.data_dir.exists() && !settings.data_dir.is_dir() {
        bail!(
            "the data directory {} is not a directory; name another by --data-dir",
            settings.data_dir.display()
        );
    }
    // The keeper refuses a directory that others may write to, but only after a bake.
    if geteuid().is_root() && settings.data_dir.is_dir() {
        DataDir::find(&settings.data_dir)?;
    }
    Ok(())
}

/// Checks the size of VMs, which only root can have.
fn check_base(check: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    if geteuid().is_root() { check() } else { Ok(()) }
}

/// Checks that the user exists as which the keeper starts the server.
fn check_user(settings: &Settings) -> anyhow::Result<()> {
    if geteuid().is_root() {
        User::resolve(settings.user.as_deref(), settings.root.first().map(PathBuf::as_path))?;
    }
    Ok(())
}

/// Checks that the roots of the account `default` are folders that an account may have. Overlaps with roots of other
/// accounts are checked when the store is open.
fn check_roots(settings: &Settings) -> anyhow::Result<()> {
    let rules = RootRules::new(&settings.data_dir).with_context(|| {
        let data_dir = settings.data_dir.display();
        format!("the data directory {data_dir} cannot be read; name another by --data-dir")
    })?;
    settings.roots().iter().try_for_each(|root| rules.check(root, &[]).map(drop))?;
    Ok(())
}

/// Runs the keeper until it is signalled to stop.
fn run_keeper(settings: &Settings) -> anyhow::Result<ExitCode> {
    check_not_served(&settings.data_dir)?;
    if !geteuid().is_root() {
        create_roots(settings)?;
    }
    let configured = reload::server_configuration(settings)?;
    let order = KeeperConfig {
        data_dir: settings.data_dir.clone(),
        listen: [settings.listen].into_iter().chain(settings.metrics_listen).collect(),
        user: settings.user.clone(),
        first_root: settings.root.first().cloned(),
        // Not its path: an upgrade may replace the file while this keeper runs.
        binary: "/proc/self/exe".into(),
        server_arguments: vec!["server-process".to_owned()],
        server_environment: PASSED_VARIABLES
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), env::var(name).ok()?)))
            .collect(),
        server_config: configured,
        read_server_config: reload::reloader(settings.clone()),
        grace: GRACE,
        swarm: swarm_or_reason(settings)?,
    };
    let format = settings.log_format;
    Ok(skep_keeper::run(order, move |begun: &StartReport| started(begun, format))?)
}

/// Checks early that no keeper serves the directory; the keeper checks it again, but only after a bake.
fn check_not_served(data_dir: &Path) -> anyhow::Result<()> {
    if data_dir.join("keeper").is_dir()
        && let Some(holder) = holder(&DataDir::find(data_dir)?)?
    {
        let address = holder.address.unwrap_or_else(|| "an unknown address".to_owned());
        let (dir, pid) = (data_dir.display(), holder.pid);
        bail!("{dir} is served by process {pid} at {address}; stop that one, or choose another --data-dir");
    }
    Ok(())
}

/// Creates named roots, which belong to the user of this process. Root cannot know whose they are.
fn create_roots(settings: &Settings) -> anyhow::Result<()> {
    for root in &settings.root {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(root);
        made.with_context(|| format!("{} cannot be created; name another by --root", root.display()))?;
    }
    Ok(())
}

/// What the keeper needs to run VMs, or why this server has none.
///
/// # Errors
/// A signal stopped the bake, or the folder of templates cannot be read while VMs of an earlier keeper run. A keeper without
/// templates would end these VMs, so this start fails and the next one takes them over.
fn swarm_or_reason(settings: &Settings) -> anyhow::Result<Result<SwarmConfig, String>> {
    if !geteuid().is_root() {
        return Ok(Err(NO_ROOT.to_owned()));
    }
    let vms_run = has_running_vms(&settings.data_dir)?;
    let error = match engine_of(settings) {
        Ok(template_builder) => match Shelf::load(&template_builder, &settings.data_dir, vms_run) {
            Ok(templates) => return Ok(Ok(swarm_order(settings, &template_builder, templates))),
            Err(error) if vms_run || is_interrupted(&error) => return Err(error),
            Err(error) => error,
        },
        Err(error) => error,
    };
    let reason = output::one_line(&error);
    tracing::error!(reason, "no VMs until the next start: {reason}");
    Ok(Err(reason))
}

fn is_interrupted(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(skep_image::Error::Interrupted(_)))
}

/// Chooses the engine, with which templates are built and VMs are run.
fn engine_of(settings: &Settings) -> anyhow::Result<TemplateBuilder> {
    let template_builder = template_builder(settings, Arc::new(|step| tracing::info!(step, "bake: {step}")))?;
    let report = template_builder.engine.report();
    tracing::info!(engine = report.name, accel = report.accel, "engine {}: {}", report.name, report.reason);
    Ok(template_builder)
}

/// What the keeper needs to run VMs.
fn swarm_order(settings: &Settings, template_builder: &TemplateBuilder, templates: Shelf) -> SwarmConfig {
    // The engine that the templates are found for: another one could have been installed since then.
    let launcher = Arc::clone(&template_builder.engine);
    let limits = VmLimits {
        disk: settings.vm_disk.limits(),
        ..VmLimits::new(template_builder.size.memory_mb, launcher.overhead_mb())
    };
    SwarmConfig {
        templates: Arc::new(templates),
        engine: launcher.report().clone(),
        launcher,
        subnet: Subnet::default(),
        egress: (settings.egress.egress == EgressUse::On).then(|| EgressConfig {
            arguments: settings.egress.arguments(),
            name_servers: settings.egress.egress_resolver.clone(),
            memory_bytes: EGRESS_MEMORY_BYTES,
        }),
        uids: UidRange { base: UidRange::DEFAULT_BASE, count: VM_UIDS },
        limits,
        max_vms: settings.capacity.max_vms,
        memory_mb: settings.capacity.memory_mb,
        memory_overcommit: settings.capacity.memory_overcommit,
        memory_guard: settings.capacity.memory_guard == MemoryGuard::On,
    }
}

fn started(started: &StartReport, format: LogFormat) {
    if started.user.is_root() {
        tracing::warn!("the server runs as root, which does not confine it; name another user with --user");
    }
    if let Some(key) = &started.new_admin_key {
        let _ = announce_key(key, &started.admin_key_file, format);
    }
}

/// Logs or prints the file of the new key.
fn announce_key(key: &str, file: &Path, format: LogFormat) -> io::Result<()> {
    if format == LogFormat::Json {
        tracing::info!(file = %file.display(), "the admin key was created in {}", file.display());
        return Ok(());
    }
    output::line(&key_announcement(key, file, io::stdout().is_terminal()))
}

/// The message about a new key. It contains the key only on a terminal: other readers of the output, such as the
/// journal, store it and are readable by more users than the file.
fn key_announcement(key: &str, file: &Path, is_terminal: bool) -> String {
    if is_terminal {
        format!("The admin key, printed only once and kept in {}:\n  {key}", file.display())
    } else {
        format!("The admin key was created in {}", file.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_is_shown_on_a_terminal_only() {
        let (key, file) = ("sk-skep-prod-0123", Path::new("/var/lib/skep/admin.key"));
        let (shown, logged) = (key_announcement(key, file, true), key_announcement(key, file, false));
        assert!(shown.contains(key) && shown.contains("/var/lib/skep/admin.key"));
        assert!(!logged.contains(key) && logged.contains("/var/lib/skep/admin.key"));
    }
}
