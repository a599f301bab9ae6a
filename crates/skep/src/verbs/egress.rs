//! `skep egress`.

use std::{process::ExitCode, str::FromStr};

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};
use skep_api::{
    egress::{EgressPolicy, EgressPreset, EgressReport, EgressTry, EgressVerdict, InvalidEgressPolicy},
    swarm::ChangeRequest,
};

use crate::{connection::Connection, output, target::vm_reference};

/// Print or change what a VM may connect to outside.
#[derive(Debug, Args)]
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
    /// Allow this port only, or `all` for every port; may be given several times [default: the ports that the policy has].
    #[arg(long, value_name = "PORT|all", value_delimiter = ',')]
    port: Vec<PortOrAll>,
    /// Print the presets with their hosts.
    #[arg(long, conflicts_with_all = ["vm", "allow", "preset", "port", "none", "all"])]
    presets: bool,
    /// Allow nothing.
    #[arg(long, conflicts_with_all = ["allow", "preset", "port", "all"])]
    none: bool,
    /// Allow all public addresses.
    #[arg(long, conflicts_with_all = ["allow", "preset", "port"])]
    all: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Egress) -> anyhow::Result<ExitCode> {
    let Some(vm) = &verb.vm else { return print_presets(verb.connection.json) };
    let client = verb.connection.client()?;
    if changes(&verb) {
        let egress = changed_policy(&verb, client.vm_egress(vm).await?.policy.clone())?;
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

fn changes(verb: &Egress) -> bool {
    verb.none || verb.all || !(verb.allow.is_empty() && verb.preset.is_empty() && verb.port.is_empty())
}

/// The policy after the change. A new list keeps the ports of the current one, since more ports are a wider policy.
fn changed_policy(verb: &Egress, current: EgressPolicy) -> anyhow::Result<EgressPolicy> {
    if verb.none {
        return Ok(EgressPolicy::None);
    }
    if verb.all {
        return Ok(EgressPolicy::All);
    }
    let ports = current.ports().map(<[u16]>::to_vec);
    let listed = match verb.allow.as_slice() {
        [] => None,
        allow => Some(EgressPolicy::listing(allow)?),
    };
    let policy = match with_presets(listed, &verb.preset)? {
        Some(list) => list.with_ports(ports.as_deref())?,
        None => current,
    };
    match policy {
        EgressPolicy::Listed(_) => with_ports(policy, &verb.port),
        word => bail!(
            "the policy of the VM is `{}`, which has no ports; name hosts with --allow or --preset",
            describe_policy(&word)
        ),
    }
}

/// A value of `--port`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PortOrAll {
    Port(u16),
    All,
}

impl FromStr for PortOrAll {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            number => number
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .map(Self::Port)
                .ok_or_else(|| format!("{number:?} is no port; give a number from 1 to 65535, or `all`")),
        }
    }
}

/// A policy with these ports, if there are any.
///
/// # Errors
/// The policy is not a list of hosts, or `all` is combined with port numbers.
pub(super) fn with_ports(policy: EgressPolicy, ports: &[PortOrAll]) -> anyhow::Result<EgressPolicy> {
    let numbers: Vec<u16> = ports
        .iter()
        .filter_map(|port| match port {
            PortOrAll::Port(port) => Some(*port),
            PortOrAll::All => None,
        })
        .collect();
    match (&policy, ports) {
        (_, []) => Ok(policy),
        (EgressPolicy::None | EgressPolicy::All, _) => {
            bail!("ports need a list of hosts or a preset; the policy is `{}`", describe_policy(&policy))
        }
        (_, [PortOrAll::All]) => Ok(policy.with_ports(None)?),
        _ if numbers.len() < ports.len() => bail!("`all` stands for every port; give it alone, or ports"),
        _ => Ok(policy.with_ports(Some(&numbers))?),
    }
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
    let EgressTry { at, name, address, port, verdict, reason, git_relay } = one;
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
    let by = if *git_relay { " by git on the server" } else { "" };
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    // Names and reasons may have text of the guest.
    output::visible_lines(&format!("{at:.0} {verdict} {target}{port}{by}{reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(arguments: &[&str], current: &str) -> Result<String, String> {
        #[derive(clap::Parser)]
        struct Command {
            #[command(flatten)]
            verb: Egress,
        }
        let parsed = <Command as clap::Parser>::try_parse_from([&["egress", "web"], arguments].concat());
        let verb = parsed.map_err(|error| error.to_string())?.verb;
        let current = serde_json::from_str(current).unwrap();
        let changed = changed_policy(&verb, current).map_err(|error| error.to_string())?;
        Ok(describe_policy(&changed))
    }

    #[test]
    fn a_change_of_the_hosts_keeps_the_ports() {
        let current = r#"{"allow":["a.example"],"ports":[443]}"#;
        for (arguments, expected) in [
            (&["--allow", "b.example"][..], r#"{"allow":["b.example"],"ports":[443]}"#),
            (&["--preset", "gitlab"], r#"{"ports":[443],"presets":["gitlab"]}"#),
            (&["--port", "80,443"], r#"{"allow":["a.example"],"ports":[80,443]}"#),
            (&["--port", "all"], r#"{"allow":["a.example"]}"#),
            (&["--allow", "b.example", "--port", "80"], r#"{"allow":["b.example"],"ports":[80]}"#),
            (&["--all"], "all"),
        ] {
            assert_eq!(change(arguments, current).as_deref(), Ok(expected), "{arguments:?}");
        }
        let listed = change(&["--allow", "b.example"], r#""none""#);
        assert_eq!(listed.as_deref(), Ok(r#"{"allow":["b.example"]}"#));
        for (arguments, current, reason) in [
            (&["--port", "80"][..], r#""all""#, "the policy of the VM is `all`, which has no ports"),
            (&["--port", "80", "--port", "all"], current, "`all` stands for every port"),
            (&["--port", "0"], current, "\"0\" is no port"),
            (&["--none", "--port", "80"], current, "cannot be used with"),
        ] {
            let error = change(arguments, current).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

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
