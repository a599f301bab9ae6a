//! `skep webhook create`, `update`, `rm`, `rotate`, `redeliver` and `test`.

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use skep_api::{
    DeliveryId, WebhookId,
    webhooks::{
        self, ChangeWebhook, CreateWebhook, CreatedWebhook, DeleteWebhook, Delivery, DeliveryPath,
        RotateWebhook, TestWebhook,
    },
};
use skep_client::Answered;

use super::show::{delivery_table, table};
use crate::{connection::Connection, output, verbs::boot::parse_milliseconds};

/// Create a webhook for future events.
#[derive(Debug, Args)]
pub(super) struct Create {
    /// URL of the endpoint (https).
    #[arg(value_name = "URL")]
    endpoint: String,
    /// Event type, such as vm.ended, or a family such as ticket.*; may be given several times [default: all that the key
    /// may read].
    #[arg(short, long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Description, one line.
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn create(verb: Create) -> anyhow::Result<ExitCode> {
    let types = (!verb.types.is_empty()).then_some(verb.types);
    let request = CreateWebhook { url: verb.endpoint, types, description: verb.description };
    print_secret(&verb.connection.client()?.run(&request).await?, verb.connection.json)
}

/// Prints the id and the secret, which is not available afterwards.
fn print_secret(made: &Answered<CreatedWebhook>, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        output::json(&made.text)?;
    } else {
        output::line(&format!("{}\n{}", made.record.id, made.secret))?;
        output::eprint_line(
            "Store the secret, it is not printed again. It verifies the header webhook-signature.",
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Change, enable or disable a webhook. Options that are not given stay unchanged.
#[derive(Debug, Args)]
pub(super) struct Update {
    /// Id of the webhook.
    id: WebhookId,
    /// New URL of the endpoint (https).
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Event type, instead of the current types; may be given several times.
    #[arg(short, long = "type", value_name = "TYPE", value_delimiter = ',')]
    types: Vec<String>,
    /// Description; an empty text removes it.
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    /// Enable the webhook: send pending and new events.
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Disable the webhook: send no events.
    #[arg(long)]
    disable: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn update(verb: Update) -> anyhow::Result<ExitCode> {
    let change = ChangeWebhook {
        url: verb.endpoint,
        types: (!verb.types.is_empty()).then_some(verb.types),
        description: verb.description.map(|text| Some(text).filter(|text| !text.is_empty())),
        enabled: (verb.enable || verb.disable).then_some(verb.enable),
    };
    if change == ChangeWebhook::default() {
        bail!("no change was given; `skep webhook update --help` lists the options");
    }
    let changed = verb.connection.client()?.run_on(verb.id, &change).await?;
    if verb.connection.json {
        output::json(&changed.text)?;
    } else {
        table(std::slice::from_ref(&changed.value))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Delete webhooks and the records of their deliveries.
#[derive(Debug, Args)]
pub(super) struct Rm {
    /// Ids of the webhooks.
    #[arg(required = true, value_name = "ID")]
    ids: Vec<WebhookId>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn rm(verb: Rm) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let mut code = ExitCode::SUCCESS;
    for id in verb.ids {
        // A failure does not stop the loop: the other webhooks are still deleted.
        match client.run_on(id, &DeleteWebhook {}).await {
            Ok(deleted) if verb.connection.json => output::json(&deleted.text)?,
            Ok(deleted) => output::line(&format!("{} is deleted", deleted.id))?,
            Err(error) => code = output::report_error(&error.into()),
        }
    }
    Ok(code)
}

/// Create a new secret for a webhook. It is printed only once.
#[derive(Debug, Args)]
pub(super) struct Rotate {
    /// Id of the webhook.
    id: WebhookId,
    /// Time during which deliveries are also signed with the old secret, such as 12h; at most 7d [default: 24h].
    #[arg(long, value_name = "TIME")]
    overlap: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn rotate(verb: Rotate) -> anyhow::Result<ExitCode> {
    let overlap_ms = verb.overlap.as_deref().map(parse_milliseconds).transpose()?;
    let client = verb.connection.client()?;
    print_secret(&client.run_on(verb.id, &RotateWebhook { overlap_ms }).await?, verb.connection.json)
}

/// Send a delivery again, even if it succeeded.
#[derive(Debug, Args)]
pub(super) struct Redeliver {
    /// Id of the webhook.
    id: WebhookId,
    /// Id of the delivery, from `skep webhook deliveries`.
    delivery: DeliveryId,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn redeliver(verb: Redeliver) -> anyhow::Result<ExitCode> {
    let path = DeliveryPath { webhook: verb.id, delivery: verb.delivery };
    let delivery = verb.connection.client()?.run_on(path, &webhooks::Redeliver {}).await?;
    print_delivery(&delivery, verb.connection.json)
}

/// Send a test event of type webhook.test.
#[derive(Debug, Args)]
pub(super) struct Test {
    /// Id of the webhook.
    id: WebhookId,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn test(verb: Test) -> anyhow::Result<ExitCode> {
    let delivery = verb.connection.client()?.run_on(verb.id, &TestWebhook {}).await?;
    print_delivery(&delivery, verb.connection.json)
}

fn print_delivery(delivery: &Answered<Delivery>, json: bool) -> anyhow::Result<ExitCode> {
    if json {
        output::json(&delivery.text)?;
    } else {
        delivery_table(std::slice::from_ref(&delivery.value))?;
    }
    Ok(ExitCode::SUCCESS)
}
