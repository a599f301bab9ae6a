//! `skep ticket`: one file per verb or group of related verbs.

mod batch;
mod change;
mod edit;
mod graph;
mod history;
mod list;
mod logs;
mod show;
mod summary;
mod wait;
mod work;

use std::process::ExitCode;

use clap::{Args, Subcommand};

pub(super) use self::show::printable;

/// Create tickets, claim them, and report their results.
#[derive(Debug, Args)]
pub(crate) struct Ticket {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Create a ticket.
    Create(edit::Create),
    /// Create tickets that may depend on each other, from a file.
    Batch(batch::Batch),
    /// List tickets, open ones first.
    List(list::List),
    /// Count tickets by status.
    Summary(summary::Summary),
    /// Show a ticket.
    Show(show::Show),
    /// Change the fields of a ticket.
    Edit(edit::Edit),
    /// Delete tickets.
    Delete(edit::Delete),
    /// Show the events and attempts of a ticket.
    History(history::History),
    /// Print the output of the command that worked on a ticket in its VM.
    Logs(logs::Logs),
    /// Wait until tickets are completed or failed.
    Wait(wait::Wait),
    /// Claim a ticket, or the next ready tickets.
    Claim(change::Claim),
    /// Renew the lease of a ticket that is held.
    Heartbeat(change::Heartbeat),
    /// Complete a ticket.
    Done(change::Finish),
    /// Fail a ticket.
    Fail(change::Finish),
    /// Release a ticket that is held.
    Release(change::Release),
    /// Make a failed ticket ready again.
    Retry(change::Retry),
    /// Show a ticket and its dependencies as a tree.
    Graph(graph::Graph),
    /// Show why a ticket cannot proceed, and what would unblock it.
    Why(show::Why),
    /// Run a command for each ready ticket, one after the other.
    Work(work::Work),
}

pub(crate) async fn run(verb: Ticket) -> anyhow::Result<ExitCode> {
    match verb.verb {
        Verb::Create(verb) => edit::create(verb).await,
        Verb::Batch(verb) => batch::run(verb).await,
        Verb::List(verb) => list::list(verb).await,
        Verb::Summary(verb) => summary::summary(verb).await,
        Verb::Edit(verb) => edit::edit(verb).await,
        Verb::Delete(verb) => edit::delete(verb).await,
        Verb::History(verb) => history::run(verb).await,
        Verb::Logs(verb) => logs::run(verb).await,
        Verb::Wait(verb) => wait::run(verb).await,
        Verb::Show(verb) => show::show(verb).await,
        Verb::Claim(verb) => change::claim(verb).await,
        Verb::Heartbeat(verb) => change::heartbeat(verb).await,
        Verb::Done(verb) => change::finish(verb, skep_api::tickets::TicketStatus::Completed).await,
        Verb::Fail(verb) => change::finish(verb, skep_api::tickets::TicketStatus::Failed).await,
        Verb::Release(verb) => change::release(verb).await,
        Verb::Retry(verb) => change::retry(verb).await,
        Verb::Graph(verb) => graph::run(verb).await,
        Verb::Why(verb) => show::why(verb).await,
        Verb::Work(verb) => work::run(verb).await,
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};
    use skep_api::tickets::CreateTickets;

    use crate::cli::Cli;

    /// The part of a verb's help that follows its options.
    fn details(verb: &str) -> String {
        let command = Cli::command();
        let verb = command.find_subcommand("ticket").and_then(|group| group.find_subcommand(verb));
        verb.and_then(Command::get_after_help).unwrap().to_string()
    }

    #[test]
    fn the_help_of_a_batch_has_one_that_the_api_takes() {
        let help = details("batch");
        let (begin, end) = (help.find('{').unwrap(), help.rfind('}').unwrap());
        let batch: CreateTickets = serde_json::from_str(&help[begin..=end]).unwrap();
        let [first, second] = batch.tickets.as_slice() else { panic!("{batch:?}") };
        let reference = format!("ref:{}", first.reference.as_deref().unwrap());
        assert_eq!(second.dependencies, Some(vec![reference]));
    }

    #[test]
    fn the_help_of_a_worker_says_what_its_command_gets_and_how_it_finishes_a_ticket() {
        let help = details("work");
        for detail in [
            "SKEP_TICKET_ID",
            "SKEP_TICKET_FILE",
            "SKEP_RESULT_FILE",
            "stdout_tail",
            "126 or 127",
            "is released",
            "SIGTERM",
        ] {
            assert!(help.contains(detail), "{detail}: {help}");
        }
    }
}
