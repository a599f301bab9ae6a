//! `skep template list` and `show`.

use std::{io, process::ExitCode};

use clap::Args;
use skep_api::templates::Template;

use crate::{
    connection::Connection,
    output,
    verbs::{egress::describe_policy, ticket::printable},
};

/// List the templates that VMs can be booted from: base first, then the oldest first.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Maximum number of entries, 1 to 1000.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 100)]
    limit: u32,
    /// Cursor of an earlier page to continue after.
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn list(verb: List) -> anyhow::Result<ExitCode> {
    let page = verb.connection.client()?.templates(verb.limit, verb.cursor.as_deref()).await?;
    if verb.connection.json {
        output::json(&page.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    table(&page.templates)?;
    if let Some(cursor) = &page.next_cursor {
        output::eprint_line(&format!("There is more: --cursor {cursor}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Show a template.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Name or id of the template.
    template: String,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn show(verb: Show) -> anyhow::Result<ExitCode> {
    let found = verb.connection.client()?.template(&verb.template).await?;
    if verb.connection.json {
        output::json(&found.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    table(std::slice::from_ref(&found.value))?;
    let details = [
        ("id", Some(found.id.to_string())),
        ("parent", found.parent.as_ref().map(ToString::to_string)),
        ("progress", found.progress.as_deref().map(printable)),
        ("error", found.error.as_deref().map(printable)),
        ("description", found.description.as_deref().map(printable)),
        ("size", found.size_bytes.map(|bytes| mebibytes(bytes >> 20))),
        ("own size", found.own_bytes.map(|bytes| mebibytes(bytes >> 20))),
        ("egress of its VMs", found.egress.as_ref().map(describe_policy)),
        ("templates made from it", Some(found.children.to_string())),
        ("created", Some(output::time(Some(found.created_at)))),
        ("last used", Some(output::time(found.last_used_at))),
    ];
    for (name, value) in details {
        if let Some(value) = value {
            output::line(&format!("{name}: {value}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints templates as a table.
pub(in crate::verbs) fn table(templates: &[Template]) -> io::Result<()> {
    let row = |template: &Template| {
        [
            template.name.to_string(),
            template.state.to_string(),
            mebibytes(template.memory_mb),
            template.vcpus.to_string(),
            mebibytes(template.disk_mb),
            template.vms.to_string(),
            output::time(template.last_used_at),
        ]
    };
    output::table(["NAME", "STATE", "MEMORY", "CPUS", "DISK", "VMS", "LAST USED"], templates.iter().map(row))
}

/// Formats a size, such as `512 MiB` or `20 GiB`.
fn mebibytes(size: u64) -> String {
    if size >= 1024 && size.is_multiple_of(1024) {
        format!("{} GiB", size / 1024)
    } else {
        format!("{size} MiB")
    }
}
