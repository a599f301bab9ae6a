//! Intersection of index ranges: tickets of one stage and priority that have several terms in common, namely all of
//! some labels and optionally an assignee.
//!
//! For each term an index contains its tickets in order. The search seeks in one index after the other to the first
//! entry at or after the candidate, which becomes the next candidate, until all indexes agree. With one term a step
//! reads one entry; with several, at most as many as the rarest term has.

use rusqlite::{Connection, params};
use skep_api::Label;

use super::{
    super::{columns::query_optional, error::SqliteError},
    list::IndexRange,
};

/// A term that all tickets of an intersection have.
#[derive(Clone, Copy)]
pub(super) enum Term<'a> {
    Label(&'a Label),
    Assignee(&'a str),
}

/// Sort key of an index entry: time of the last change, and ticket id.
pub(super) type Entry = (i64, String);

/// Iterates over the tickets of an index range that have all terms.
pub(super) struct Intersection<'a> {
    pub(super) connection: &'a Connection,
    pub(super) account: String,
    /// Must not be empty.
    pub(super) terms: Vec<Term<'a>>,
    pub(super) range: IndexRange,
    /// Order by time of the last change, latest first; otherwise by id.
    pub(super) by_change: bool,
    /// Only with `by_change`: include all stages of the status.
    pub(super) all_stages: bool,
    /// The last entry that was returned, or the start position.
    pub(super) after: Entry,
}

impl Intersection<'_> {
    pub(super) fn next(&mut self) -> Result<Option<Entry>, SqliteError> {
        let mut terms = self.terms.iter().cycle();
        let Some(first) = terms.next() else { return Ok(None) };
        let Some(mut found) = self.seek(first, &self.after, false)? else { return Ok(None) };
        let mut agreed = 1;
        while agreed < self.terms.len()
            && let Some(term) = terms.next()
        {
            match self.seek(term, &found, true)? {
                None => return Ok(None),
                Some(same) if same == found => agreed += 1,
                Some(later) => (found, agreed) = (later, 1),
            }
        }
        self.after.clone_from(&found);
        Ok(Some(found))
    }

    /// Returns the first entry of a term after `from`, or at `from` if `or_equal`.
    fn seek(&self, word: &Term<'_>, from: &Entry, or_equal: bool) -> Result<Option<Entry>, SqliteError> {
        let sql = sql_of(word, self.by_change, or_equal);
        let text = match word {
            Term::Label(label) => label.as_str(),
            Term::Assignee(name) => name,
        };
        let IndexRange { status, stage, priority } = self.range;
        let (at, id) = from;
        let entry = |row: &super::super::columns::Columns<'_>| Ok((row.get("updated_at")?, row.get("id")?));
        if self.by_change {
            let stage = (!self.all_stages).then_some(stage);
            let params = params![self.account, text, status.as_str(), priority, at, id, stage];
            query_optional(self.connection, &sql, params, entry)
        } else {
            query_optional(self.connection, &sql, params![self.account, text, stage, priority, id], entry)
        }
    }
}

fn sql_of(word: &Term<'_>, by_change: bool, or_equal: bool) -> String {
    let (table, id, column, index) = match word {
        Term::Label(_) => ("ticket_labels", "ticket", "label", "ticket_labels_by_change"),
        Term::Assignee(_) => ("tickets", "id", "assignee", "tickets_of_assignee_by_change"),
    };
    let equal = if or_equal { "=" } else { "" };
    if by_change {
        format!(
            "SELECT updated_at, {id} AS id FROM {table} INDEXED BY {index}
             WHERE account = ?1 AND {column} = ?2 AND status = ?3 AND priority = ?4
                 AND (updated_at, {id}) <{equal} (?5, ?6) AND (?7 IS NULL OR stage = ?7)
             ORDER BY updated_at DESC, {id} DESC LIMIT 1"
        )
    } else {
        format!(
            "SELECT updated_at, {id} AS id FROM {table}
             WHERE account = ?1 AND {column} = ?2 AND stage = ?3 AND priority = ?4 AND {id} >{equal} ?5
             ORDER BY {id} LIMIT 1"
        )
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::sqlite::migrations::migrate;

    #[test]
    fn every_step_is_a_search_in_an_index_that_is_in_order() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection).unwrap();
        let label: Label = "a".parse().unwrap();
        for word in [Term::Label(&label), Term::Assignee("a")] {
            for (by_change, or_equal) in [(false, false), (false, true), (true, false), (true, true)] {
                let sql = format!("EXPLAIN QUERY PLAN {}", sql_of(&word, by_change, or_equal));
                let mut statement = connection.prepare(&sql).unwrap();
                let nothing = vec![rusqlite::types::Null; statement.parameter_count()];
                let rows =
                    statement.query_map(rusqlite::params_from_iter(nothing), |row| row.get(3)).unwrap();
                let plan: Vec<String> = rows.collect::<Result<_, _>>().unwrap();
                let [step] = plan.as_slice() else { panic!("{plan:?}") };
                assert!(
                    step.starts_with("SEARCH") && (step.contains("INDEX") || step.contains("PRIMARY KEY")),
                    "{step}"
                );
                let bounds = if by_change { "(updated_at," } else { "stage=? AND priority=? AND " };
                assert!(step.contains(bounds), "{step}");
            }
        }
    }
}
