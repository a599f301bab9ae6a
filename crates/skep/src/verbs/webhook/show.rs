//! `skep webhook list`, `show` and `deliveries`.

use std::{io, process::ExitCode};

use clap::Args;
use skep_api::{
    WebhookId,
    webhooks::{Delivery, DeliveryAttempt, ListDeliveries, ListWebhooks, ReadWebhook, Webhook},
};

use crate::{connection::Connection, output, verbs::ticket::printable};

/// List the webhooks, newest first.
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
    let query = ListWebhooks { limit: Some(verb.limit), cursor: verb.cursor };
    let page = verb.connection.client()?.run(&query).await?;
    if verb.connection.json {
        output::json(&page.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    table(&page.webhooks)?;
    print_next_cursor(page.next_cursor.as_deref());
    Ok(ExitCode::SUCCESS)
}

fn print_next_cursor(cursor: Option<&str>) {
    if let Some(cursor) = cursor {
        output::eprint_line(&format!("There is more: --cursor {cursor}"));
    }
}

/// Prints webhooks as a table.
pub(super) fn table(webhooks: &[Webhook]) -> io::Result<()> {
    let row = |webhook: &Webhook| {
        [
            webhook.id.to_string(),
            state(webhook),
            webhook.types.join(","),
            printable(&webhook.url),
            webhook.description.as_deref().map_or_else(|| "-".to_owned(), printable),
        ]
    };
    output::table(["ID", "STATE", "TYPES", "URL", "DESCRIPTION"], webhooks.iter().map(row))
}

fn state(webhook: &Webhook) -> String {
    match webhook.disabled_reason {
        Some(reason) => format!("disabled ({reason})"),
        None => "enabled".to_owned(),
    }
}

/// Show a webhook: its record, line by line.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Id of the webhook.
    id: WebhookId,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn show(verb: Show) -> anyhow::Result<ExitCode> {
    let webhook = verb.connection.client()?.run_on(verb.id, &ReadWebhook {}).await?;
    if verb.connection.json {
        output::json(&webhook.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let at = |time: Option<jiff::Timestamp>| time.map(|time| output::time(Some(time)));
    let lines = [
        ("id", Some(webhook.id.to_string())),
        ("url", Some(printable(&webhook.url))),
        ("state", Some(state(&webhook))),
        ("disabled", at(webhook.disabled_at)),
        ("types", Some(webhook.types.join(" "))),
        ("description", webhook.description.as_deref().map(printable)),
        ("old secret", at(webhook.previous_secret_until).map(|time| format!("signs until {time}"))),
        ("created", at(Some(webhook.created_at))),
        ("updated", at(Some(webhook.updated_at))),
    ];
    for (name, value) in lines {
        if let Some(value) = value {
            output::line(&format!("{name:<12} {value}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// List deliveries and their outcomes, newest first.
#[derive(Debug, Args)]
pub(super) struct Deliveries {
    /// Id of the webhook.
    id: WebhookId,
    /// Maximum number of entries, 1 to 1000.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 50)]
    limit: u32,
    /// Cursor of an earlier page to continue after.
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn deliveries(verb: Deliveries) -> anyhow::Result<ExitCode> {
    let query = ListDeliveries { limit: Some(verb.limit), cursor: verb.cursor };
    let page = verb.connection.client()?.run_on(verb.id, &query).await?;
    if verb.connection.json {
        output::json(&page.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    delivery_table(&page.deliveries)?;
    print_next_cursor(page.next_cursor.as_deref());
    Ok(ExitCode::SUCCESS)
}

/// Prints deliveries as a table.
pub(super) fn delivery_table(deliveries: &[Delivery]) -> io::Result<()> {
    let row = |delivery: &Delivery| {
        [
            delivery.id.to_string(),
            delivery.kind.clone(),
            delivery.state.to_string(),
            delivery.attempts.len().to_string(),
            delivery.attempts.last().map_or_else(|| "-".to_owned(), outcome),
            output::time(delivery.next_attempt_at),
            delivery.event.clone(),
        ]
    };
    let header = ["ID", "TYPE", "STATE", "ATTEMPTS", "LAST", "NEXT", "EVENT"];
    output::table(header, deliveries.iter().map(row))
}

fn outcome(attempt: &DeliveryAttempt) -> String {
    match (attempt.status, &attempt.error) {
        (Some(status), _) => format!("{status} in {} ms", attempt.duration_ms),
        (None, Some(error)) => printable(error),
        (None, None) => "no answer".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_short() {
        let attempt = |status, error: Option<&str>| {
            let error = error.map(str::to_owned);
            outcome(&DeliveryAttempt {
                at: jiff::Timestamp::UNIX_EPOCH,
                status,
                duration_ms: 7,
                error,
                answer: None,
            })
        };
        assert_eq!(attempt(Some(204), None), "204 in 7 ms");
        assert_eq!(attempt(None, Some("refused\u{1b}[2J")), "refused [2J");
        assert_eq!(attempt(None, None), "no answer");
    }
}
