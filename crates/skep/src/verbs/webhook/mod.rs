//! `skep webhook`: webhooks and their deliveries.

mod change;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Send events to an HTTP endpoint, and list the deliveries.
#[derive(Debug, Args)]
pub(crate) struct Webhook {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a webhook; its secret is printed only once.
    Create(change::Create),
    /// List the webhooks, newest first.
    List(show::List),
    /// Show a webhook.
    Show(show::Show),
    /// Change, enable or disable a webhook.
    Update(change::Update),
    /// Delete webhooks.
    Rm(change::Rm),
    /// Create a new secret for a webhook; it is printed only once, and the old one stays valid for a while.
    Rotate(change::Rotate),
    /// List deliveries and their outcomes, newest first.
    Deliveries(show::Deliveries),
    /// Send a delivery again.
    Redeliver(change::Redeliver),
    /// Send a test event.
    Test(change::Test),
}

pub(crate) async fn run(verb: Webhook) -> anyhow::Result<ExitCode> {
    match verb.verb {
        Verb::Create(verb) => change::create(verb).await,
        Verb::List(verb) => show::list(verb).await,
        Verb::Show(verb) => show::show(verb).await,
        Verb::Update(verb) => change::update(verb).await,
        Verb::Rm(verb) => change::rm(verb).await,
        Verb::Rotate(verb) => change::rotate(verb).await,
        Verb::Deliveries(verb) => show::deliveries(verb).await,
        Verb::Redeliver(verb) => change::redeliver(verb).await,
        Verb::Test(verb) => change::test(verb).await,
    }
}
