//! `skep ticket create`, `edit` and `delete`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use jiff::Timestamp;
use serde_json::Value;
use skep_api::{
    Label, Patch, TicketId,
    tickets::{ChangeTicket, CreateTicket, Object, Priority},
};
use skep_client::Deletion;

use super::change::{print_changed, text_or_stdin};
use crate::{
    connection::Connection,
    output,
    verbs::boot::{parse_milliseconds, parse_pairs},
};

/// Create a ticket and print its id.
#[derive(Debug, Args)]
pub(super) struct Create {
    /// Title: one line that describes the task.
    title: String,
    /// Description; - reads it from standard input.
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    /// Priority: critical, high, medium or low [default: medium].
    #[arg(short, long)]
    priority: Option<Priority>,
    /// Ticket that must be completed first; may be given several times.
    #[arg(long = "after", value_name = "ID")]
    dependencies: Vec<TicketId>,
    /// Label, such as plan/port, for filters of lists, claims and workers; may be given several times.
    #[arg(short, long = "label", value_name = "LABEL")]
    labels: Vec<Label>,
    /// Metadata for the ticket's record; may be given several times.
    #[arg(short, long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    /// Maximum number of attempts: the ticket fails when so many have ended without a result [default: 5].
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<u32>,
    /// Maximum duration of one attempt, such as 90s or 2h [default: 24h].
    #[arg(long, value_name = "TIME")]
    max_runtime: Option<String>,
    /// Earliest time at which the ticket can be claimed, such as 2027-01-01T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    not_before: Option<Timestamp>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn create(verb: Create) -> anyhow::Result<ExitCode> {
    let metadata = parse_pairs(&verb.metadata)?;
    let metadata: Object = metadata.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
    let request = CreateTicket {
        title: verb.title,
        description: verb.description.map(text_or_stdin).transpose()?,
        priority: verb.priority,
        dependencies: (!verb.dependencies.is_empty()).then_some(verb.dependencies),
        labels: (!verb.labels.is_empty()).then_some(verb.labels),
        metadata: (!metadata.is_empty()).then_some(metadata),
        max_attempts: verb.max_attempts,
        max_runtime_ms: verb.max_runtime.as_deref().map(parse_milliseconds).transpose()?,
        not_before: verb.not_before,
    };
    let made = verb.connection.client()?.create_ticket(&request).await?;
    if verb.connection.json {
        output::json(&made.text)?;
    } else {
        output::line(&made.id.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Change fields of a ticket. Labels and metadata can be changed at any time, other fields until the ticket is
/// completed.
#[derive(Debug, Args)]
pub(super) struct Edit {
    /// Id of the ticket.
    id: TicketId,
    #[command(flatten)]
    fields: Fields,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Fields {
    /// Title: one line that describes the task.
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// Description; - reads it from standard input, an empty text removes it.
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    /// Priority: critical, high, medium or low.
    #[arg(short, long)]
    priority: Option<Priority>,
    /// Label, instead of the current ones; may be given several times.
    #[arg(short, long = "label", value_name = "LABEL")]
    labels: Vec<Label>,
    /// Remove all labels.
    #[arg(long, conflicts_with = "labels")]
    no_labels: bool,
    /// Ticket that must be completed first, instead of the current ones; may be given several times.
    #[arg(long = "after", value_name = "ID")]
    dependencies: Vec<TicketId>,
    /// Remove all dependencies.
    #[arg(long, conflicts_with = "dependencies")]
    no_dependencies: bool,
    /// Metadata, instead of the current metadata; may be given several times.
    #[arg(short, long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    /// Remove all metadata.
    #[arg(long, conflicts_with = "metadata")]
    no_metadata: bool,
    /// Maximum number of attempts: the ticket fails when so many have ended without a result.
    #[arg(long, value_name = "NUMBER")]
    max_attempts: Option<u32>,
    /// Maximum duration of one attempt, such as 90s or 2h.
    #[arg(long, value_name = "TIME")]
    max_runtime: Option<String>,
    /// Earliest time at which the ticket can be claimed, such as 2027-01-01T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    not_before: Option<Timestamp>,
    /// Remove the earliest time: the ticket can be claimed at once.
    #[arg(long, conflicts_with = "not_before")]
    no_not_before: bool,
}

impl Fields {
    fn change(self) -> anyhow::Result<ChangeTicket> {
        let metadata = parse_pairs(&self.metadata)?;
        let metadata: Object =
            metadata.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
        let description = self.description.map(text_or_stdin).transpose()?;
        Ok(ChangeTicket {
            title: self.title,
            description: patch(description.clone().filter(|text| !text.is_empty()), description.is_some()),
            priority: self.priority,
            labels: (self.no_labels || !self.labels.is_empty()).then_some(self.labels),
            dependencies: (self.no_dependencies || !self.dependencies.is_empty())
                .then_some(self.dependencies),
            metadata: patch((!metadata.is_empty()).then_some(metadata), self.no_metadata),
            max_attempts: self.max_attempts,
            max_runtime_ms: self.max_runtime.as_deref().map(parse_milliseconds).transpose()?,
            not_before: patch(self.not_before, self.no_not_before),
            ..ChangeTicket::default()
        })
    }
}

fn patch<T>(value: Option<T>, removed: bool) -> Patch<T> {
    match value {
        Some(value) => Patch::Value(value),
        None if removed => Patch::Null,
        None => Patch::Absent,
    }
}

pub(super) async fn edit(verb: Edit) -> anyhow::Result<ExitCode> {
    let change = verb.fields.change()?;
    print_changed(&verb.connection.client()?.change_ticket(verb.id, &change).await?, verb.connection.json)
}

/// Treatment of unfinished tickets that depend on a deleted one.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Dependents {
    /// Remove the dependency.
    Detach,
    /// Delete them too, with their own dependents.
    Delete,
}

/// Delete tickets. Their history is kept.
#[derive(Debug, Args)]
pub(super) struct Delete {
    /// Ids of the tickets.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<TicketId>,
    /// Also delete tickets that are held.
    #[arg(short, long)]
    force: bool,
    /// Treatment of unfinished tickets that depend on a deleted one [default: refuse to delete a ticket with
    /// dependents].
    #[arg(long, value_name = "HOW")]
    dependents: Option<Dependents>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn delete(verb: Delete) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let dependents = verb.dependents.map(|dependents| match dependents {
        Dependents::Detach => "detach",
        Dependents::Delete => "delete",
    });
    for id in verb.ids {
        let deleted = client.delete_ticket(id, Deletion { force: verb.force, dependents }).await?;
        if verb.connection.json {
            output::json(&deleted.text)?;
        } else {
            output::line(&format!("{id} deleted"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
