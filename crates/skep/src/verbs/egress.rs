//! `skep egress`.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};
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
    let Some(vm) = &verb.vm else { return print_presets(verb.connection.json) };
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

fn print_presets(as_json: bool) -> anyhow::Result<ExitCode> {
    let hosts = |preset: &EgressPreset| preset.hosts().collect::<Vec<_>>();
    if as_json {
        let presets = EgressPreset::ALL
            .iter()
            .map(|preset| json!({"name": preset.name, "purpose": preset.purpose, "hosts": hosts(preset)}));
        output::value(&json!({"presets": presets.collect::<Vec<_>>()}))?;
    } else {
        let row = |preset: &EgressPreset| {
            [preset.name.to_owned(), preset.purpose.to_owned(), hosts(preset).join(" ")]
        };
        output::table(["PRESET", "PURPOSE", "HOSTS"], EgressPreset::ALL.iter().map(row))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn requested_policy(verb: &Egress) -> anyhow::Result<Option<EgressPolicy>> {
    let policy = match (verb.none, verb.all, verb.allow.as_slice()) {
        (true, ..) => Some(EgressPolicy::None),
        (_, true, _) => Some(EgressPolicy::All),
        (_, _, []) => None,
        (_, _, allow) => Some(EgressPolicy::listing(allow)?),
    };
    with_presets(policy, &verb.preset)
}

/// Adds presets to a policy, if there are any.
///
/// # Errors
/// The policy is `none`, which a preset would contradict, or `all`, which needs none.
pub(super) fn with_presets(
    policy: Option<EgressPolicy>,
    presets: &[EgressPreset],
) -> anyhow::Result<Option<EgressPolicy>> {
    if presets.is_empty() {
        return Ok(policy);
    }
    if let Some(word @ (EgressPolicy::None | EgressPolicy::All)) = &policy {
        let names: Vec<&str> = presets.iter().map(|preset| preset.name).collect();
        let word = describe_policy(word);
        bail!(
            "`--egress {word}` cannot be combined with `--egress-preset {}`; leave one out",
            names.join(",")
        );
    }
    Ok(Some(policy.unwrap_or_default().with_presets(presets)))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_extend_a_list_and_contradict_a_word() {
        let presets = [EgressPreset::by_name("gitlab").unwrap()];
        let extended = |policy: Option<EgressPolicy>| {
            with_presets(policy, &presets).unwrap().map(|policy| describe_policy(&policy))
        };
        assert_eq!(extended(None).as_deref(), Some(r#"{"presets":["gitlab"]}"#));
        let listed = parse_policy("api.example.com").unwrap();
        assert_eq!(
            extended(Some(listed)).as_deref(),
            Some(r#"{"allow":["api.example.com"],"presets":["gitlab"]}"#)
        );
        for word in ["none", "all"] {
            let policy = Some(parse_policy(word).unwrap());
            let error = with_presets(policy.clone(), &presets).unwrap_err().to_string();
            assert!(error.contains(&format!("--egress {word}")) && error.contains("gitlab"), "{error}");
            assert_eq!(with_presets(policy.clone(), &[]).unwrap(), policy);
        }
    }
}
