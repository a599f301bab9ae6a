//! `skep egress`.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;
use skep_api::{
    egress::{EgressPolicy, EgressReport, EgressTry, EgressVerdict, InvalidEgressPolicy},
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
    #[arg(value_name = "VM", value_parser = vm_reference)]
    vm: String,
    /// Allow this host, `*.HOST` for all names below it, or this IPv4 network, and nothing else that is not given; may be
    /// given several times. Connections that are not allowed any more end.
    #[arg(long, value_name = "HOST|CIDR", value_delimiter = ',')]
    allow: Vec<String>,
    /// Allow nothing.
    #[arg(long, conflicts_with_all = ["allow", "all"])]
    none: bool,
    /// Allow all public addresses.
    #[arg(long, conflicts_with = "allow")]
    all: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Egress) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let policy = match (verb.none, verb.all, verb.allow.as_slice()) {
        (true, ..) => Some(EgressPolicy::None),
        (_, true, _) => Some(EgressPolicy::All),
        (_, _, []) => None,
        (_, _, allow) => Some(EgressPolicy::listing(allow)?),
    };
    if let Some(egress) = policy {
        let request = ChangeRequest { egress: Some(egress), ..ChangeRequest::default() };
        client.change_vm(&verb.vm, &request).await?;
    }
    let report = client.vm_egress(&verb.vm).await?;
    if verb.connection.json {
        output::json(&report.text)?;
    } else {
        output::line(&text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
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
