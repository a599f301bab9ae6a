//! `skep audit`.

use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use skep_api::{
    KeyId,
    audit::{AuditEntry, ListAudit, Outcome},
};

use super::egress::describe_policy;
use crate::{connection::Connection, output};

/// Show the audit log: every write and every refusal.
///
/// The entries have key and address, the newest comes first.
#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// Show only entries of the key with this id.
    #[arg(long, value_name = "ID")]
    key: Option<KeyId>,
    /// Show only this operation, such as boot or create_key; `unmatched` selects requests for unknown paths.
    #[arg(long, value_name = "OPERATION")]
    action: Option<String>,
    /// Show only this outcome: done, refused, a status such as 403, or a code such as scope_missing.
    #[arg(long)]
    outcome: Option<String>,
    /// Show only entries at or after this time, such as 2027-01-01T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    since: Option<Timestamp>,
    /// Show only entries before this time.
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
    /// Maximum number of entries, 1 to 1000.
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = 50)]
    limit: u32,
    /// Cursor of an earlier page to continue after.
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(verb: Audit) -> anyhow::Result<ExitCode> {
    let query = ListAudit {
        limit: Some(verb.limit),
        cursor: verb.cursor,
        key: verb.key,
        action: verb.action,
        outcome: verb.outcome,
        since: verb.since,
        until: verb.until,
    };
    let page = verb.connection.client()?.run(&query).await?;
    if verb.connection.json {
        output::json(&page.text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let header = ["AT", "KEY", "ADDRESS", "ACTION", "RESOURCE", "EGRESS", "OUTCOME", "REQUEST"];
    output::table(header, page.entries.iter().map(row))?;
    if let Some(cursor) = &page.next_cursor {
        output::eprint_line(&format!("There is more: --cursor {cursor}"));
    }
    Ok(ExitCode::SUCCESS)
}

fn row(entry: &AuditEntry) -> [String; 8] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        format!("{:.3}", entry.at),
        or_dash(entry.key.as_ref().map(|key| key.prefix.clone())),
        or_dash(entry.address.map(|address| address.to_string())),
        entry.action.clone(),
        or_dash(entry.resource.clone()),
        or_dash(entry.egress.as_ref().map(describe_policy)),
        outcome(entry.outcome),
        entry.request_id.clone(),
    ]
}

fn outcome(outcome: Outcome) -> String {
    match (outcome.status, outcome.code) {
        (Some(status), Some(code)) => format!("{status} {}", code.as_str()),
        (Some(status), None) => status.to_string(),
        (None, _) => "caller left".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use skep_api::ErrorCode;

    use super::*;

    #[test]
    fn an_outcome_is_short() {
        let refused = Outcome { status: Some(403), code: Some(ErrorCode::ScopeMissing) };
        assert_eq!(outcome(refused), "403 scope_missing");
        assert_eq!(outcome(Outcome { status: Some(201), code: None }), "201");
        assert_eq!(outcome(Outcome { status: None, code: None }), "caller left");
    }
}
