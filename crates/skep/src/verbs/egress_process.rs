//! `skep egress-process`: connects VMs to hosts outside, started by the keeper.

use std::{fs::File, process::ExitCode};

use anyhow::Context;
use clap::Args;
use rustix::fs::FileType;
use skep_egress::{Allowlist, Networks, Rules};
use skep_vm_egress::{Listeners, Settings};

use crate::{inherited, settings::EgressLimits};

/// The descriptors that the keeper passes, in their order.
const CONTROL_FD: i32 = 3;
const PROXY_FD: i32 = 4;
const DNS_UDP_FD: i32 = 5;
const DNS_TCP_FD: i32 = 6;
const NAMES_FD: i32 = 7;

#[derive(Debug, Args)]
pub(crate) struct EgressProcess {
    /// Private network, address or host that may be reached; may be given several times.
    #[arg(long, value_name = "HOST|CIDR")]
    allow: Vec<String>,
    /// Network, address or host that may not be reached; may be given several times.
    #[arg(long, value_name = "HOST|CIDR")]
    deny: Vec<String>,
    /// Network that counts as public; may be given several times.
    #[arg(long, value_name = "CIDR")]
    public: Vec<String>,
    #[command(flatten)]
    limits: EgressLimits,
}

pub(crate) fn run(verb: EgressProcess) -> anyhow::Result<ExitCode> {
    let control = inherited::take(CONTROL_FD, FileType::Socket)?;
    let listeners = Listeners {
        proxy: inherited::take(PROXY_FD, FileType::Socket)?.into(),
        dns_udp: inherited::take(DNS_UDP_FD, FileType::Socket)?.into(),
        dns_tcp: inherited::take(DNS_TCP_FD, FileType::Socket)?.into(),
    };
    let names = File::from(inherited::take(NAMES_FD, FileType::RegularFile)?);
    let rules = Rules {
        allow: Allowlist::parse(&verb.allow),
        deny: Allowlist::parse(&verb.deny),
        public: Networks::parse(&verb.public),
    };
    let settings =
        Settings::read(rules, verb.limits.limits(), names).context("the egress process cannot start")?;
    skep_vm_egress::confine().context("the egress process cannot be confined")?;
    // The runtime starts after the confinement, which does not apply to existing threads.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("the asynchronous runtime could not start")?;
    runtime.block_on(skep_vm_egress::serve(control, listeners, settings))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser;
    use skep_vm_egress::Limits;

    use super::*;
    use crate::{cli::Internal, settings::Egress};

    /// The settings of a server for the connections of VMs.
    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        egress: Egress,
    }

    fn server(flags: &[&str]) -> Egress {
        Line::try_parse_from(["skep"].into_iter().chain(flags.iter().copied())).unwrap().egress
    }

    /// Parses the command line with which a server that has these settings starts the egress process.
    fn started_by(server: &Egress) -> EgressProcess {
        let line = ["skep".to_owned()].into_iter().chain(server.arguments());
        match Internal::try_parse_from(line).unwrap() {
            Internal::EgressProcess(process) => process,
            other => panic!("{other:?}"),
        }
    }

    /// Connections per VM, connections of all VMs, new connections per second, megabits per second, and the idle timeout.
    fn numbers(limits: Limits) -> ([u32; 4], Duration) {
        let Limits { connections, all_connections, new_connections, mbit, idle } = limits;
        ([connections, all_connections, new_connections, mbit].map(|number| number.get()), idle)
    }

    #[test]
    fn the_limits_of_connections_have_the_documented_defaults() {
        let documented = ([1024, 8000, 200, 250], Duration::from_secs(900));
        let server = server(&[]);
        assert_eq!(numbers(server.egress_limits.limits()), documented);
        assert_eq!(numbers(started_by(&server).limits.limits()), documented);
        assert_eq!(numbers(Limits::default()), documented);
    }

    #[test]
    fn the_process_gets_the_settings_of_the_server() {
        let process = started_by(&server(&[
            "--egress-allow=10.1.0.0/16,registry.internal",
            "--egress-deny=198.51.100.7",
            "--egress-deny=evil.example",
            "--egress-public=203.0.113.0/24",
            "--egress-connections=11",
            "--egress-connections-of-all=12",
            "--egress-new-connections=13",
            "--egress-mbit=14",
            "--egress-idle=15",
        ]));
        assert_eq!(process.allow, ["10.1.0.0/16", "registry.internal"]);
        assert_eq!(process.deny, ["198.51.100.7", "evil.example"]);
        assert_eq!(process.public, ["203.0.113.0/24"]);
        assert_eq!(numbers(process.limits.limits()), ([11, 12, 13, 14], Duration::from_secs(15)));
    }
}
