//! Parses commit objects.

use jiff::Timestamp;
use skep_api::git::{Commit, Signature};

use super::ObjectId;

/// A commit in the format that git writes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ParsedCommit<'a> {
    pub(super) parents: Vec<ObjectId>,
    pub(super) author: Person<'a>,
    pub(super) committer: Person<'a>,
    /// Starts after the empty line behind the header.
    message: &'a [u8],
}

/// Author or committer, with the date in seconds since 1970.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Person<'a> {
    name: &'a [u8],
    email: &'a [u8],
    pub(super) seconds: u64,
}

impl<'a> ParsedCommit<'a> {
    /// `None` for contents with special rules: another encoding, a person without a date, a zero byte.
    pub(super) fn parse(content: &'a [u8]) -> Option<Self> {
        if content.contains(&0) {
            return None;
        }
        let mut rest = content;
        ObjectId::parse(take_line(&mut rest)?.strip_prefix(b"tree ")?)?;
        let mut parents = Vec::new();
        let author = loop {
            let line = take_line(&mut rest)?;
            match line.strip_prefix(b"parent ") {
                Some(parent) => parents.push(ObjectId::parse(parent)?),
                None => break line,
            }
        };
        let author = Person::parse(author.strip_prefix(b"author ")?)?;
        let committer = Person::parse(take_line(&mut rest)?.strip_prefix(b"committer ")?)?;
        loop {
            let line = take_line(&mut rest)?;
            // Signatures and other fields may span several lines.
            if line.is_empty() {
                break;
            }
            if line.starts_with(b"encoding ")
                || line.starts_with(b"author ")
                || line.starts_with(b"committer ")
            {
                return None;
            }
        }
        Some(Self { parents, author, committer, message: rest })
    }

    /// Converts it to the type of the API.
    pub(super) fn to_api(&self, id: &ObjectId) -> Commit {
        let rest = skip_blank_lines(self.message);
        let (subject, rest) = split_subject(rest);
        Commit {
            id: id.to_string(),
            parents: self.parents.iter().map(ObjectId::to_string).collect(),
            author: self.author.to_api(),
            committer: self.committer.to_api(),
            subject: String::from_utf8_lossy(&subject).into_owned(),
            body: String::from_utf8_lossy(skip_blank_lines(rest)).trim_end().to_owned(),
        }
    }
}

impl<'a> Person<'a> {
    fn parse(text: &'a [u8]) -> Option<Self> {
        let open = text.iter().position(|byte| *byte == b'<')?;
        let close = text.iter().position(|byte| *byte == b'>')?;
        let (name, email) = (text[..open].strip_suffix(b" ")?, text.get(open + 1..close)?);
        let rest = &text[close + 1..];
        let crud = |text: &[u8]| text.first().is_none_or(is_blank) || text.last().is_none_or(is_blank);
        if crud(name) || crud(email) || email.contains(&b'<') || rest.contains(&b'>') {
            return None;
        }
        let (seconds, zone) = rest.strip_prefix(b" ")?.split_at_checked(rest.len().checked_sub(7)?)?;
        let digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
        let zone = zone.strip_prefix(b" +").or_else(|| zone.strip_prefix(b" -"))?;
        if zone.len() != 4 || !digits(zone) || !digits(seconds) || seconds.len() > 12 {
            return None;
        }
        let seconds = std::str::from_utf8(seconds).ok()?.parse().ok()?;
        Some(Self { name, email, seconds })
    }

    fn to_api(&self) -> Signature {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let date = i64::try_from(self.seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
        Signature { name: text(self.name), email: text(self.email), date: date.unwrap_or(Timestamp::MAX) }
    }
}

/// Takes the next line without its newline. The header ends with an empty line.
fn take_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let line = &rest[..end];
    *rest = &rest[end + 1..];
    Some(line)
}

/// Whitespace as git defines it (ctype.c).
fn is_blank(byte: &u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Splits off the next line with its newline.
fn split_line(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| end + 1);
    text.split_at(end)
}

fn skip_blank_lines(mut text: &[u8]) -> &[u8] {
    while !text.is_empty() {
        let (line, rest) = split_line(text);
        if !line.iter().all(is_blank) {
            break;
        }
        text = rest;
    }
    text
}

/// Joins the lines of the first paragraph, and returns the rest of the text.
fn split_subject(mut text: &[u8]) -> (Vec<u8>, &[u8]) {
    let mut subject = Vec::new();
    while !text.is_empty() {
        let (line, rest) = split_line(text);
        text = rest;
        let Some(last) = line.iter().rposition(|byte| !is_blank(byte)) else { break };
        if !subject.is_empty() {
            subject.push(b' ');
        }
        subject.extend_from_slice(&line[..=last]);
    }
    (subject, text)
}

/// The target of an annotated tag.
pub(super) fn tag_target(content: &[u8]) -> Option<ObjectId> {
    let mut rest = content;
    let id = ObjectId::parse(take_line(&mut rest)?.strip_prefix(b"object ")?);
    matches!(take_line(&mut rest)?, b"type commit" | b"type tag").then_some(id).flatten()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEAD: &str = "tree 1111111111111111111111111111111111111111\n\
        author A B <a@b> 5 +0100\ncommitter C <c@d> 6 -0000\n";

    #[test]
    fn what_git_writes_is_read() {
        let text = format!("{HEAD}gpgsig -----BEGIN\n \n more\n -----END\n\n\n one\ntwo \n\n  three\n\n");
        let id = ObjectId::from_bytes([1; 20]);
        let commit = ParsedCommit::parse(text.as_bytes()).unwrap().to_api(&id);
        assert_eq!((commit.subject.as_str(), commit.body.as_str()), (" one two", "  three"));
        assert_eq!((commit.author.name.as_str(), commit.committer.email.as_str()), ("A B", "c@d"));
        assert_eq!(commit.committer.date.as_second(), 6);
    }

    #[test]
    fn commits_with_special_rules_are_left_to_git() {
        for (old, new) in [
            ("C <", "encoding latin1\nC <"),
            ("A B <a@b> 5 +0100", "A B <a@b>"),
            ("A B <a@b>", "<a@b>"),
            ("A B <a@b>", "A > B <a@b>"),
            ("A B <a@b>", "A B <a@b> <c>"),
            ("5 +0100", "-5 +0100"),
            ("5 +0100", "5 0100"),
            ("5 +0100", "5555555555555 +0100"),
            ("tree ", "tee "),
        ] {
            let text = format!("{HEAD}\nx\n").replace(old, new);
            assert_eq!(ParsedCommit::parse(text.as_bytes()), None, "{text}");
        }
        assert!(ParsedCommit::parse(format!("{HEAD}encoding latin1\n\nx").as_bytes()).is_none());
        assert!(ParsedCommit::parse(format!("{HEAD}\nx\0").as_bytes()).is_none());
        assert!(ParsedCommit::parse(HEAD.as_bytes()).is_none());
        assert!(ParsedCommit::parse(format!("{HEAD}\nx").as_bytes()).is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(text in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = tag_target(&text);
            let _ = ParsedCommit::parse(&text);
            let _ = Person::parse(&text);
            let whole = [HEAD.as_bytes(), b"\n", &text].concat();
            if let Some(parsed) = ParsedCommit::parse(&whole) {
                let _ = parsed.to_api(&ObjectId::from_bytes([0; 20]));
            }
        }
    }
}
