//! Search for a text in the titles and ids of tickets, without regard to case.

use rusqlite::{Connection, params};

use super::super::{columns::query_optional, error::SqliteError};

/// How many tickets a page of a search examines at most. A page that ends there continues on the next one.
pub(super) const MAX_EXAMINED: usize = 100_000;

/// A text to search for.
pub(super) struct Search(String);

impl Search {
    pub(super) fn of(text: &str) -> Self {
        Self(text.to_lowercase())
    }

    pub(super) fn matches(&self, id: &str, title: &str) -> bool {
        // Ids are in lower case.
        title.to_lowercase().contains(&self.0) || id.contains(&self.0)
    }

    /// Like [`Self::matches`]; a title that is not known yet is read.
    pub(super) fn matches_place(
        &self,
        connection: &Connection,
        id: &str,
        title: Option<&str>,
    ) -> Result<bool, SqliteError> {
        if let Some(title) = title {
            return Ok(self.matches(id, title));
        }
        let sql = "SELECT title FROM tickets WHERE id = ?1";
        let title = query_optional(connection, sql, params![id], |row| row.get::<String>("title"))?;
        Ok(title.is_some_and(|title| self.matches(id, &title)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_taken_literally_and_without_regard_to_case() {
        let id = "tkt_01jv0000000000000000000000";
        for (text, title, found) in [
            ("parser", "Port the PARSER", true),
            ("ÄRGER", "ärger", true),
            ("%", "100 %", true),
            ("%", "all of it", false),
            ("_", "a", true),
            ("a_c", "abc", false),
            ("' OR 1=1", "it's", false),
            ("it's \"so\"", "IT'S \"SO\"", true),
            ("TKT_01JV", "a", true),
            ("\\", "a\\b", true),
        ] {
            assert_eq!(Search::of(text).matches(id, title), found, "{text} {title}");
        }
    }
}
