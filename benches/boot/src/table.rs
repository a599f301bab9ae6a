//! The results, as printed for users.

use comfy_table::{Table, presets::NOTHING};

use crate::{
    percentiles::Percentiles,
    report::{Group, Report, Run},
};

pub(crate) fn format(report: &Report) -> String {
    let mut table = Table::new();
    table.load_style(NOTHING).set_header(["MODE", "SOURCE", "VMS", "FIGURE", "P50", "P95", "P99", "MAX"]);
    table.add_rows(rows(report));
    format!("{table}\n\n{}\n", facts(report).join("\n"))
}

fn rows(report: &Report) -> Vec<[String; 8]> {
    let mut rows = Vec::new();
    for run in &report.runs {
        for group in &run.groups {
            let [mode, source, vms] = [run.mode.name(), source_of(group), &group.vms.to_string()];
            let named =
                [("identity_ms", group.identity_ms), ("ready_ms", group.ready_ms), ("tti_ms", group.tti_ms)];
            let memory = [
                ("private_mb", group.private_mb),
                ("anonymous_mb", group.anonymous_mb),
                ("proportional_mb", group.proportional_mb),
            ];
            let memory = memory.into_iter().filter_map(|(name, figures)| Some((name, figures?)));
            rows.extend(
                named
                    .into_iter()
                    .chain(memory)
                    .map(|(name, figures)| row([mode, source, vms, name], figures)),
            );
        }
    }
    if let Some((number, figures)) =
        report.commands.as_ref().and_then(|commands| Some((commands.number, commands.elapsed_ms?)))
    {
        rows.push(row(["commands", "-", "1", &format!("{number} x true, ms")], figures));
    }
    rows
}

fn row(labels: [&str; 4], figures: Percentiles) -> [String; 8] {
    let [mode, source, vms, name] = labels.map(str::to_owned);
    let [p50, p95, p99, max] =
        [figures.p50, figures.p95, figures.p99, figures.max].map(|value| format!("{value:.1}"));
    [mode, source, vms, name, p50, p95, p99, max]
}

fn source_of(group: &Group) -> &'static str {
    match group.source {
        skep_api::swarm::BootSource::Pool => "pool",
        skep_api::swarm::BootSource::Cold => "cold",
    }
}

/// Results that are not in the table, one line each.
fn facts(report: &Report) -> Vec<String> {
    let mut lines: Vec<String> = report.runs.iter().map(success).collect();
    lines.extend(report.runs.iter().filter_map(cost));
    if !report.same_machine {
        lines.push(
            "CPU, memory and other load could not be read: the server runs on another machine".to_owned(),
        );
    } else if report.runs.iter().flat_map(|run| &run.groups).any(|group| group.private_mb.is_none()) {
        lines.push("memory could not be read: that needs root".to_owned());
    }
    if let Some(idle) = &report.idle {
        for (name, rest) in [("running", &idle.running), ("parked", &idle.parked)] {
            if let Some(share) = rest.cpu_share {
                let vms = rest.vms;
                let percent = share * 100.0;
                lines
                    .push(format!("at rest     {name}: {percent:.2} % of a processor for each of {vms} VMs"));
            }
        }
    }
    lines
}

fn success(run: &Run) -> String {
    let Run { succeeded, vms, elapsed_ms, .. } = run;
    let percent = run.success_rate * 100.0;
    let mode = run.mode.name();
    format!("success     {mode}: {succeeded} of {vms} ({percent:.1} %), in {:.1} s", elapsed_ms / 1000.0)
}

fn cost(run: &Run) -> Option<String> {
    let cost = run.cost?;
    let (mode, all, server, other) =
        (run.mode.name(), cost.cpu_ms_per_vm, cost.server_cpu_ms_per_vm, cost.other_load * 100.0);
    Some(format!(
        "CPU         {mode}: {all:.0} ms per VM, of which {server:.0} ms keeper and server; other load {other:.0} % of the machine"
    ))
}
