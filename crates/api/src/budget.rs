//! A limit on the size of answers that are assembled from many elements.

use std::io;

use serde::Serialize;
use serde_json::Value;

/// The maximum size of an assembled answer, in bytes of JSON.
pub const MAX_ANSWER_BYTES: usize = 16 << 20;

/// The size that is left for further elements of an answer.
///
/// An element costs its length as JSON plus the size of its type, so that a million tiny elements need no more memory
/// than a few long ones. The first element that does not fit exhausts the budget: later ones are rejected even if
/// they would fit, so the answer has no gaps.
#[derive(Debug)]
pub struct Budget {
    left: Option<usize>,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(MAX_ANSWER_BYTES)
    }
}

impl Budget {
    /// Creates a budget of `bytes`.
    pub fn new(bytes: usize) -> Self {
        Self { left: Some(bytes) }
    }

    /// Adds the cost of an element. Returns false if it does not fit, which exhausts the budget.
    pub fn try_add<T: Serialize>(&mut self, element: &T) -> bool {
        let cost = json_len(element) + size_of::<T>();
        self.left = self.left.and_then(|left| left.checked_sub(cost));
        self.left.is_some()
    }

    /// Whether an element did not fit.
    pub fn is_exhausted(&self) -> bool {
        self.left.is_none()
    }

    /// The remaining size in bytes; 0 if the budget is exhausted.
    pub fn remaining(&self) -> usize {
        self.left.unwrap_or(0)
    }

    /// Truncates a text to the remaining size and adds its cost. Returns whether the text was truncated.
    pub fn truncate_text(&mut self, text: &mut String) -> bool {
        let Some(mut left) = self.left.and_then(|left| left.checked_sub(2)) else {
            self.left = None;
            let whole = text.len();
            text.clear();
            return whole > 0;
        };
        let end = text.char_indices().find_map(|(at, char)| match left.checked_sub(escaped_len(char)) {
            Some(less) => {
                left = less;
                None
            }
            None => Some(at),
        });
        self.left = end.is_none().then_some(left);
        end.inspect(|end| text.truncate(*end)).is_some()
    }

    /// Adds the cost of an element and returns it; `None` if it does not fit.
    pub fn take_if_fits<T: Serialize>(&mut self, element: T) -> Option<T> {
        self.try_add(&element).then_some(element)
    }

    /// Truncates a page to the elements that fit, but keeps its first element, because otherwise paging would never
    /// end. Returns whether the page was truncated.
    pub fn truncate_page<T: Serialize>(&mut self, page: &mut Vec<T>) -> bool {
        let fitting = page.iter().take_while(|element| self.try_add(*element)).count();
        let whole = page.len();
        page.truncate(fitting.max(1));
        page.len() < whole
    }
}

/// The length of a character in a JSON string, in bytes.
fn escaped_len(char: char) -> usize {
    match char {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..'\u{20}' => 6,
        _ => char.len_utf8(),
    }
}

/// The length of a value as JSON, in bytes. Meaningless for a value that JSON cannot represent, which
/// is an error when it is written.
pub fn json_len<T: Serialize + ?Sized>(value: &T) -> usize {
    let mut counter = Counter(0);
    let _ = serde_json::to_writer(&mut counter, value);
    counter.0
}

/// An estimate of the memory of a parsed JSON value, in bytes, without its strings. An element of an array needs a
/// whole [`Value`], even if it is one digit of JSON.
pub fn estimated_memory(value: &Value) -> usize {
    let inner = match value {
        Value::Array(values) => values.iter().map(estimated_memory).sum(),
        // The nodes of an object's tree are not full, hence the factor.
        Value::Object(fields) => {
            fields.values().map(|field| 3 * size_of::<Value>() + estimated_memory(field)).sum()
        }
        _ => 0,
    };
    size_of::<Value>() + inner
}

/// A writer that counts the bytes.
struct Counter(usize);

impl io::Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_counted() {
        for text in ["", "plain", "\0\u{1}\"\\\n", "\u{fc}\u{2603}"] {
            assert_eq!(json_len(text), serde_json::to_string(text).unwrap().len(), "{text:?}");
        }
    }

    #[test]
    fn an_exhausted_budget_accepts_nothing() {
        let mut budget = Budget::new(100);
        assert!(budget.try_add(&[0_u8; 16]) && !budget.try_add(&"x".repeat(100)) && budget.is_exhausted());
        assert!(!budget.try_add(&0_u8));
        assert_eq!(budget.take_if_fits(7), None);
    }

    #[test]
    fn a_text_is_cut_where_its_json_would_be_too_long() {
        for text in ["", "plain", "\0\u{1}\"\\\n\r\t\u{8}\u{c}\u{7f}", "\u{fc}\u{2603}"] {
            let whole = json_len(text);
            let mut same = text.to_owned();
            assert!(!Budget::new(whole).truncate_text(&mut same) && same == text);
            for bytes in 0..whole {
                let mut shorter = text.to_owned();
                let cut = Budget::new(bytes).truncate_text(&mut shorter);
                assert_eq!(cut, !text.is_empty());
                assert!(text.starts_with(&shorter) && (json_len(&shorter) <= bytes || shorter.is_empty()));
            }
        }
    }

    #[test]
    fn a_page_keeps_its_first_element() {
        let mut page = vec!["x".repeat(60); 3];
        assert!(Budget::new(100).truncate_page(&mut page));
        assert_eq!(page.len(), 1);
        assert!(!Budget::new(10).truncate_page(&mut page), "it is as short as pages become");
        let mut page = vec![1_u8, 2];
        assert!(!Budget::default().truncate_page(&mut page));
        assert_eq!(page, [1, 2]);
        assert!(!Budget::new(0).truncate_page(&mut Vec::<u8>::new()));
    }
}
