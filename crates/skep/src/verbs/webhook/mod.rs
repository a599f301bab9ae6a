//! `skep webhook`: what happens, sent to an endpoint.

mod change;
mod show;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::connection::EXIT_CODES;

/// Have events sent to an endpoint, and see what came of it.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Webhook {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a webhook; its secret is printed this once.
    Create(change::Create),
    /// List the webhooks, newest first.
    List(show::List),
    /// Show a webhook.
    Show(show::Show),
    /// Change, enable or disable a webhook; what is not named stays.
    Update(change::Update),
    /// Delete webhooks.
    Rm(change::Rm),
    /// Give a webhook another secret, which is printed this once; the old one signs too for a while.
    Rotate(change::Rotate),
    /// List what was sent, newest first, and what came of it.
    Deliveries(show::Deliveries),
    /// Send an event again.
    Redeliver(change::Redeliver),
    /// Send an event that tells of nothing.
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
