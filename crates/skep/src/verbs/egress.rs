//! `skep egress`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use skep_api::{
    egress::{EgressPolicy, EgressPreset, EgressReport, EgressTry, EgressVerdict, InvalidEgressPolicy},
    swarm::ChangeRequest,
};

use crate::{
    connection::{Connection, EXIT_CODES},
    output,
    target::vm_reference,
};

/// Print or change what a VM may connect to outside.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Egress {
    /// VM: process id, id, name, host name or address.
    #[arg(value_name = "VM", value_parser = vm_reference, required_unless_present = "presets")]
    vm: Option<String>,
    /// Allow this host, `*.HOST` for all names below it, or this IPv4 network, and nothing else that is not given; may be
    /// given several times. Connections that are not allowed any more end.
    #[arg(long, value_name = "HOST|CIDR", value_delimiter = ',')]
    allow: Vec<String>,
    /// Allow the hosts of this preset, such as `python`; may be given several times.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_preset)]
    preset: Vec<EgressPreset>,
    /// Print the presets with their hosts.
    #[arg(long, conflicts_with_all = ["vm", "allow", "preset", "none", "all"])]
    presets: bool,
    /// Allow nothing.
    #[arg(long, conflicts_with_all = ["allow", "preset", "all"])]
    none: bool,
    /// Allow all public addresses.
    #[arg(long, conflicts_with_all = ["allow", "preset"])]
    all: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Egress) -> anyhow::Result<ExitCode> {
    let Some(vm) = &verb.vm else {
        let line =
            |preset: &EgressPreset| [preset.name.to_owned(), preset.purpose.to_owned(), hosts_of(*preset)];
        output::table(["PRESET", "PURPOSE", "HOSTS"], EgressPreset::ALL.iter().map(line))?;
        return Ok(ExitCode::SUCCESS);
    };
    let client = verb.connection.client()?;
    if let Some(egress) = requested_policy(&verb)? {
        let request = ChangeRequest { egress: Some(egress), ..ChangeRequest::default() };
        client.change_vm(vm, &request).await?;
    }
    let report = client.vm_egress(vm).await?;
    if verb.connection.json {
        output::json(&report.text)?;
    } else {
        output::line(&text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn hosts_of(preset: EgressPreset) -> String {
    preset.hosts().collect::<Vec<_>>().join(" ")
}

fn requested_policy(verb: &Egress) -> Result<Option<EgressPolicy>, InvalidEgressPolicy> {
    let policy = match (verb.none, verb.all, verb.allow.as_slice()) {
        (true, ..) => Some(EgressPolicy::None),
        (_, true, _) => Some(EgressPolicy::All),
        (_, _, []) => None,
        (_, _, allow) => Some(EgressPolicy::listing(allow)?),
    };
    Ok(with_presets(policy, &verb.preset))
}

/// Adds presets to a policy, if there are any.
pub(super) fn with_presets(policy: Option<EgressPolicy>, presets: &[EgressPreset]) -> Option<EgressPolicy> {
    if presets.is_empty() { policy } else { Some(policy.unwrap_or_default().with_presets(presets)) }
}

/// Parses the name of a preset.
pub(super) fn parse_preset(name: &str) -> Result<EgressPreset, InvalidEgressPolicy> {
    EgressPreset::by_name(name).ok_or_else(|| InvalidEgressPolicy::Preset(name.to_owned()))
}

/// Parses the value of `--egress`: `none`, `all`, or hosts and networks with commas between them.
pub(super) fn parse_policy(text: &str) -> Result<EgressPolicy, InvalidEgressPolicy> {
    match text {
        "none" => Ok(EgressPolicy::None),
        "all" => Ok(EgressPolicy::All),
        listed => {
            let allow: Vec<&str> = listed.split(',').map(str::trim).collect();
            EgressPolicy::listing(&allow)
        }
    }
}

/// A policy on one line: a word, or the JSON of its list.
pub(super) fn describe_policy(policy: &EgressPolicy) -> String {
    match Value::from(policy.clone()) {
        Value::String(word) => word,
        list => list.to_string(),
    }
}

fn text(report: &EgressReport) -> String {
    let counted = format!(
        "policy {}\n{} open, {} bytes sent, {} bytes received, {} refused",
        describe_policy(&report.policy),
        output::counted(report.open_connections, "connection"),
        report.sent_bytes,
        report.received_bytes,
        report.refused,
    );
    let lines = report.tries.iter().map(line);
    [counted].into_iter().chain(lines).collect::<Vec<_>>().join("\n")
}

fn line(one: &EgressTry) -> String {
    let EgressTry { at, name, address, port, verdict, reason } = one;
    let target = match (name, address) {
        (Some(name), Some(address)) => format!("{name} ({address})"),
        (Some(name), None) => name.clone(),
        (None, address) => address.map_or_else(|| "-".to_owned(), |address| address.to_string()),
    };
    let port = port.map(|port| format!(" port {port}")).unwrap_or_default();
    let verdict = match verdict {
        EgressVerdict::Allowed => "allowed",
        EgressVerdict::Refused => "refused",
        EgressVerdict::Failed => "failed",
    };
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    // Names and reasons may have text of the guest.
    output::visible_lines(&format!("{at:.0} {verdict} {target}{port}{reason}"))
}
