//! `skep doctor`: checks of the machine.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use serde::Serialize;

use crate::{output, settings::Settings, templates::shelf_of};

/// The exit codes of the other verbs, in terms of this one.
const EXIT_CODES: &str = "Exit codes: 0 VMs can be booted here, possibly with warnings, or everything was removed; 1 something is missing or wrong, or the removal failed; 2 the command line is wrong.";

mod built_templates;
mod egress_names;
mod engine;
mod git;
mod installation;
mod kernel;
mod machine;
mod programs;
mod roots;
mod store;

/// Check whether this machine can run a server with VMs.
///
/// Prints how to fix what is missing. No server needs to run.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Doctor {
    #[command(flatten)]
    settings: Settings,
    /// Remove what a crashed server with this data directory left elsewhere on the machine, such as VMs and network
    /// namespaces, and the remains of a killed bake. Refused while a server or a bake runs.
    #[arg(long)]
    clean: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The result of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    /// It works, but with restrictions.
    Warning,
    /// Missing; without it no VM can be booted.
    Missing,
    /// Present but wrong.
    Wrong,
}

/// One check and its result.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    state: State,
    detail: String,
    /// How to fix it; null if nothing is to be done.
    way_out: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Self { check, state: State::Ok, detail: detail.into(), way_out: None }
    }

    fn warning(check: &'static str, detail: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { check, state: State::Warning, detail: detail.into(), way_out: Some(way_out.into()) }
    }

    fn missing(check: &'static str, detail: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { check, state: State::Missing, detail: detail.into(), way_out: Some(way_out.into()) }
    }

    fn wrong(check: &'static str, detail: impl Into<String>, way_out: impl Into<String>) -> Self {
        Self { check, state: State::Wrong, detail: detail.into(), way_out: Some(way_out.into()) }
    }
}

pub(crate) fn run(verb: Doctor) -> anyhow::Result<ExitCode> {
    let settings = verb.settings.resolved()?;
    if verb.clean {
        return clean(&settings, verb.json);
    }
    let mut findings = vec![installation::privileges()];
    findings.extend(kernel::findings());
    findings.extend(machine::findings());
    findings.extend(engine::findings(&settings));
    findings.extend(programs::findings());
    findings.push(git::finding());
    findings.extend(installation::findings(&settings));
    findings.extend(store::findings(&settings));
    findings.extend(roots::findings(&settings));
    findings.push(egress_names::finding(&settings));
    let healthy = findings.iter().all(|finding| matches!(finding.state, State::Ok | State::Warning));
    if verb.json {
        output::value(&serde_json::json!({"healthy": healthy, "findings": findings}))?;
    } else {
        show(&findings)?;
    }
    Ok(if healthy { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(findings: &[Finding]) -> anyhow::Result<()> {
    for Finding { check, state, detail, way_out } in findings {
        let mark = match state {
            State::Ok => "ok     ",
            State::Warning => "warning",
            State::Missing => "MISSING",
            State::Wrong => "WRONG  ",
        };
        output::line(&format!("{mark}  {check:<12}  {detail}"))?;
        if let Some(way_out) = way_out {
            output::line(&format!("{:23}=> {way_out}", ""))?;
        }
    }
    Ok(())
}

fn clean(settings: &Settings, json: bool) -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("the remains of a server with VMs belong to root; run `sudo skep doctor --clean`");
    }
    let (data_dir, image_dir) = (&settings.data_dir, settings.image_dir());
    if data_dir.is_dir() {
        skep_keeper::clean_data_dir(data_dir)?;
    }
    skep_image::clean(&image_dir)?;
    // Built templates have their own directory, unless the image directory is not set.
    let shelf = shelf_of(data_dir);
    if shelf != image_dir {
        skep_image::clean(&shelf)?;
    }
    if json {
        output::value(&serde_json::json!({"cleaned": [data_dir, image_dir]}))?;
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&format!("removed what a server with {} left elsewhere", data_dir.display()))?;
    output::line(&format!("removed the remains of killed bakes in {}", image_dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
