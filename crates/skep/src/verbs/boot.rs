//! `skep boot`.

use std::{collections::BTreeMap, pin::pin, process::ExitCode};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Map, Value};
use skep_api::{
    ErrorCode, TicketId, VmName,
    egress::{EgressPolicy, EgressPreset},
    swarm::{BootAnswer, BootRequest, OnIdle},
};
use skep_client::{Answered, Client};

use super::{
    egress::{PortOrAll, parse_policy, parse_preset, with_ports, with_presets},
    ps::show_booted,
};
use crate::{connection::Connection, output, signals::Signals};

type BootOutcome = skep_client::Result<Answered<BootAnswer>>;

/// Boot one or more VMs.
#[derive(Debug, Args)]
pub(crate) struct Boot {
    /// Name of the template [default: the base template].
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// With the template of a snapshot: start from its disk alone, with its files, and without its memory and processes. That
    /// also works if it is outdated, after an update of skep, of QEMU or of the processor.
    #[arg(long, requires = "template")]
    without_memory: bool,
    #[command(flatten)]
    options: BootOptions,
    #[command(flatten)]
    connection: Connection,
}

/// The options that a boot and a fork have in common.
#[derive(Debug, Args)]
pub(super) struct BootOptions {
    /// Number of VMs.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 1)]
    count: u32,
    /// Name of the VM, accepted wherever its process id is; unique among the account's running VMs.
    #[arg(long, value_name = "NAME")]
    name: Option<VmName>,
    /// Lifetime, such as 90s, 30m, 8h or 2d [default: that of the server, unlimited unless it is configured].
    #[arg(long, value_name = "TIME")]
    ttl: Option<String>,
    /// Time without a call, a running --command or an open connection to outside after which --on-idle happens, such as 10m
    /// [default: never].
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<String>,
    /// What happens after --idle-timeout: `pause`, `pause-to-disk` or `end`. The next command in a VM that was paused so
    /// resumes it [default: pause].
    #[arg(long, value_name = "ACTION", value_parser = parse_on_idle, requires = "idle_timeout")]
    on_idle: Option<OnIdle>,
    /// Metadata for the record of each VM; may be given several times.
    #[arg(short, long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    /// What the VMs may connect to outside: `none`, `all` for all public addresses, or hosts, `*.HOST` and IPv4 networks with
    /// commas between them [default: that of the account, `none` unless it is changed; for a fork, and for VMs of a snapshot,
    /// that of its VM].
    #[arg(long, value_name = "POLICY", value_parser = parse_policy)]
    egress: Option<EgressPolicy>,
    /// Also allow the hosts of this preset, such as `python`; may be given several times. `skep egress --presets` lists
    /// them.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = parse_preset)]
    egress_preset: Vec<EgressPreset>,
    /// With --egress or --egress-preset: allow this port only, or `all` for every port; may be given several times [default:
    /// all].
    #[arg(long, value_name = "PORT|all", value_delimiter = ',')]
    egress_port: Vec<PortOrAll>,
    /// Environment variable for all commands in the VMs; may be given several times.
    #[arg(short, long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Ticket for the VM to work on. It is claimed before the boot and held as long as the VM runs. The VM ends with
    /// its attempt.
    #[arg(long, value_name = "ID")]
    ticket: Option<TicketId>,
    /// With --ticket: keep the VM running after its attempt has ended.
    #[arg(long, requires = "ticket")]
    keep_vm: bool,
    /// Command to start in each VM, by `/bin/sh -c`; the boot does not wait for its end. With --ticket, the ticket is
    /// held while the command runs: exit code 0 completes it, with the object in /run/skep/result.json or the end of
    /// the output as result; 126 and 127 release it; other exit codes end the attempt. `skep ticket logs` prints the
    /// output.
    #[arg(long, value_name = "COMMAND")]
    command: Option<String>,
}

fn parse_on_idle(word: &str) -> Result<OnIdle, String> {
    [OnIdle::Pause, OnIdle::PauseToDisk, OnIdle::End]
        .into_iter()
        .find(|action| action.as_str() == word.replace('-', "_"))
        .ok_or_else(|| "give `pause`, `pause-to-disk` or `end`".to_owned())
}

/// `None` without options, for the default of the account.
fn requested_policy(
    policy: Option<EgressPolicy>,
    presets: &[EgressPreset],
    ports: &[PortOrAll],
) -> anyhow::Result<Option<EgressPolicy>> {
    match with_presets(policy, presets)? {
        None if ports.is_empty() => Ok(None),
        policy => with_ports(policy.unwrap_or_default(), ports).map(Some),
    }
}

impl BootOptions {
    /// The request, without a template.
    ///
    /// # Errors
    /// An option is malformed.
    pub(super) fn into_request(self) -> anyhow::Result<BootRequest> {
        Ok(BootRequest {
            count: Some(self.count),
            name: self.name,
            template: None,
            memory: None,
            ttl_ms: self.ttl.as_deref().map(parse_milliseconds).transpose()?,
            idle_timeout_ms: self.idle_timeout.as_deref().map(parse_milliseconds).transpose()?,
            on_idle: self.on_idle,
            metadata: if self.metadata.is_empty() { None } else { Some(parse_metadata(&self.metadata)?) },
            egress: requested_policy(self.egress, &self.egress_preset, &self.egress_port)?,
            env: if self.env.is_empty() { None } else { Some(parse_pairs(&self.env)?) },
            ticket: self.ticket,
            command: self.command,
            keep_vm: self.keep_vm.then_some(true),
        })
    }
}

pub(crate) async fn run(verb: Boot) -> anyhow::Result<ExitCode> {
    let memory = verb.without_memory.then_some(false);
    let request = BootRequest { template: verb.template, memory, ..verb.options.into_request()? };
    let client = verb.connection.client()?;
    match boot_unless_signalled(&client, &request).await? {
        Ok(booted) => show(&booted, verb.connection.json, "booted"),
        Err(code) => Ok(code),
    }
}

/// Prints the VMs of an answer.
pub(super) fn show(booted: &Answered<BootAnswer>, json: bool, what: &str) -> anyhow::Result<ExitCode> {
    if json {
        output::json(&booted.text)?;
    } else {
        show_booted(&booted.vms)?;
        output::eprint_line(&format!(
            "{} {what} in {:.0} ms",
            output::counted(booted.vms.len() as u64, "VM"),
            booted.elapsed_ms
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Boots VMs. After a signal, ends them as soon as they have booted, and returns the exit code of the signal.
pub(super) async fn boot_unless_signalled(
    client: &Client,
    request: &BootRequest,
) -> anyhow::Result<Result<Answered<BootAnswer>, ExitCode>> {
    let count = request.count.unwrap_or(1);
    let what = format!("booting {count} VM{}", if count == 1 { "" } else { "s" });
    wait_unless_signalled(client, &what, client.boot(request)).await
}

/// Waits for a boot, which `what` names while it waits. After a signal, ends its VMs as soon as they have booted, and
/// returns the exit code of the signal.
pub(super) async fn wait_unless_signalled(
    client: &Client,
    what: &str,
    boot: impl Future<Output = BootOutcome>,
) -> anyhow::Result<Result<Answered<BootAnswer>, ExitCode>> {
    let mut signals = Signals::listen()?;
    let mut boot = pin!(output::with_spinner(what, boot));
    tokio::select! {
        booted = &mut boot => Ok(Ok(booted?)),
        code = signals.next_exit_code() => {
            output::eprint_line("skep: waiting for the boot, to end its VMs; interrupt again to leave them running");
            tokio::select! {
                ended = end(client, boot) => ended?,
                _ = signals.next_exit_code() => {}
            }
            Ok(Err(code))
        }
    }
}

/// Parses `NAME=VALUE` pairs.
pub(super) fn parse_pairs(pairs: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
    let pair = |pair: &String| {
        let (name, value) =
            pair.split_once('=').with_context(|| format!("`{pair}` is not of the form NAME=VALUE"))?;
        Ok((name.to_owned(), value.to_owned()))
    };
    pairs.iter().map(pair).collect()
}

/// Waits for a cancelled boot and ends its VMs. Returns the first failure.
async fn end(client: &Client, boot: impl Future<Output = BootOutcome>) -> anyhow::Result<()> {
    // A failed boot leaves no VMs.
    let vms = boot.await.map_or_else(|_| Vec::new(), |booted| booted.value.vms);
    let mut failed = None;
    for vm in vms {
        match client.end_vm(&vm.id.to_string()).await {
            Ok(_) => {}
            // Its command may have shut it down.
            Err(error) if error.has_code(ErrorCode::UnknownVm) => {}
            // A failure does not stop the loop: the other VMs are still ended.
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Parses `NAME=VALUE` pairs into the metadata of a record.
pub(super) fn parse_metadata(pairs: &[String]) -> anyhow::Result<Map<String, Value>> {
    Ok(parse_pairs(pairs)?.into_iter().map(|(name, value)| (name, Value::String(value))).collect())
}

/// Parses a duration with a unit; without one, in seconds.
pub(super) fn parse_milliseconds(text: &str) -> anyhow::Result<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => bail!("`{text}` is not a duration; use a number and a unit, such as 90s or 2h"),
    };
    let number: u64 = digits
        .parse()
        .with_context(|| format!("`{text}` is not a duration; use a number and a unit, such as 90s or 2h"))?;
    number.checked_mul(unit).with_context(|| format!("`{text}` is too long a duration"))
}

#[cfg(test)]
mod tests {
    use std::{
        future,
        io::{BufRead, BufReader, Write},
        net::TcpListener,
        thread::{self, JoinHandle},
    };

    use serde_json::json;
    use skep_api::VmId;

    use super::*;

    /// A server that answers one request for each of these statuses and codes. Returns its address, and the requests by
    /// their first lines.
    fn server(answers: Vec<(u16, &'static str)>) -> (String, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serve = move |(status, code): (u16, &str)| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map(Result::unwrap);
            let first = lines.next().unwrap();
            lines.find(String::is_empty).unwrap();
            let body = r#"{"error": "refused", "message": "refused"}"#;
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status} Status\r\nskep-error: {code}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            stream.write_all(answer.as_bytes()).unwrap();
            first
        };
        (url, thread::spawn(move || answers.into_iter().map(serve).collect()))
    }

    fn booted(ids: &[VmId]) -> Answered<BootAnswer> {
        let vm = |id: &VmId| {
            json!({
                "id": id, "ip": "10.77.0.2", "uptime": 1.0, "state": "running", "template": "base",
                "started_at": "2027-01-01T00:00:00Z", "vcpus": 1, "memory_mb": 128, "metadata": {},
                "boot": {
                    "source": "cold", "restore_ms": 1.0, "identity_ms": 1.0, "ready_ms": 1.0, "reseeded": true,
                    "clock_step_ms": 0.0,
                },
            })
        };
        let answer = json!({"vms": ids.iter().map(vm).collect::<Vec<_>>(), "elapsed_ms": 1.0});
        Answered { value: serde_json::from_value(answer).unwrap(), text: bytes::Bytes::new() }
    }

    #[test]
    fn each_vm_of_a_cancelled_boot_is_ended_also_after_a_failure() {
        let ids: Vec<VmId> = (0..3).map(|_| VmId::generate()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for (code, fails) in [("unknown_vm", false), ("guest_timeout", true)] {
            let (url, serving) = server(vec![(404, "unknown_vm"), (504, code), (404, "unknown_vm")]);
            let client = Client::new(&url, None).unwrap();
            let ended = runtime.block_on(end(&client, future::ready(Ok(booted(&ids)))));
            assert_eq!(ended.is_err(), fails, "{ended:?}");
            let wanted: Vec<String> =
                ids.iter().map(|id| format!("DELETE /api/swarm/vm/{id} HTTP/1.1")).collect();
            assert_eq!(serving.join().unwrap(), wanted);
        }
    }

    #[test]
    fn a_time_has_a_unit() {
        for (text, expected) in
            [("5", 5_000), ("250ms", 250), ("2m", 120_000), ("1h", 3_600_000), ("1d", 86_400_000)]
        {
            assert_eq!(parse_milliseconds(text).unwrap(), expected, "{text}");
        }
        for wrong in ["", "s", "1y", "-1s", "1.5h", "99999999999999999d"] {
            assert!(parse_milliseconds(wrong).is_err(), "{wrong}");
        }
    }
}
