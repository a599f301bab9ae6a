//! Searching for lines in files.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch,
};
use ignore::{DirEntry, WalkState};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use skep_api::{
    files::{GrepFiles, LinesFound, MatchedLine},
    path::told,
};

use super::{
    Leash,
    pattern::{COMPILED_BYTES, Pattern},
    walk::{Scope, each_below},
};
use crate::{
    Error, Roots,
    roots::{Found, Last},
};

/// The longest line that is answered, in bytes: of a longer one its beginning.
const LINE_BYTES: usize = 4 << 10;
/// What a search may hold of one line while it looks, in bytes.
const HELD_BYTES: usize = 16 << 20;

pub(super) fn grep(roots: &Roots, request: &GrepFiles, leash: &Leash) -> Result<LinesFound, Error> {
    let refused = |field, reason: String| Error::InvalidPattern { field, reason };
    let matcher = RegexMatcherBuilder::new()
        .size_limit(COMPILED_BYTES)
        .line_terminator(Some(b'\n'))
        .build(&request.pattern);
    let matcher = matcher.map_err(|error| refused("pattern", format!("is no regex over lines: {error}")))?;
    let glob = request.glob.as_deref().map(Pattern::glob).transpose();
    let glob = glob.map_err(|reason| refused("glob", format!("is no glob: {reason}")))?;
    let path = request.path.as_path();
    let search = Search { matcher, request, leash, found: Mutex::default(), count: AtomicUsize::new(0) };
    let start = roots.find(path, Last::Follow)?;
    let whole = if start.is_directory() {
        search.folder(&start, glob.as_ref())?
    } else {
        crate::files::require_file(&start, path)?;
        search
            .file(&mut search.searcher(), start.read(), || path.into())
            .map_err(|error| Error::of_path(path, &error))?;
        !leash.is_cut()
    };
    Ok(search.answer(whole))
}

/// A search under way, in several files at once.
struct Search<'a> {
    matcher: RegexMatcher,
    request: &'a GrepFiles,
    leash: &'a Leash,
    found: Mutex<Vec<MatchedLine>>,
    count: AtomicUsize,
}

impl Search<'_> {
    fn folder(&self, start: &Found, glob: Option<&Pattern>) -> Result<bool, Error> {
        let scope = Scope { hidden: true, gitignore: false };
        each_below(start, scope, self.leash, || {
            // Its buffers serve all files of the thread.
            let mut searcher = self.searcher();
            move |entry: &DirEntry, below: &Path| {
                let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
                if is_file && glob.is_none_or(|glob| glob.matches(below)) {
                    let path = || self.request.path.as_path().join(below);
                    // What cannot be read, or is gone since, has no lines for who searches.
                    let _ = self.file(&mut searcher, open(start, below), path);
                }
                if self.is_full() { WalkState::Quit } else { WalkState::Continue }
            }
        })
    }

    fn searcher(&self) -> Searcher {
        let context = self.request.context as usize;
        SearcherBuilder::new()
            .binary_detection(BinaryDetection::quit(0))
            .heap_limit(Some(HELD_BYTES))
            .before_context(context)
            .after_context(context)
            .build()
    }

    fn file(
        &self,
        searcher: &mut Searcher,
        file: io::Result<std::fs::File>,
        path: impl FnOnce() -> PathBuf,
    ) -> io::Result<()> {
        let context = self.request.context as usize;
        let mut lines = Lines { search: self, context, before: Vec::new(), found: Vec::new() };
        searcher.search_file(&self.matcher, &file?, &mut lines)?;
        if lines.found.is_empty() {
            return Ok(());
        }
        let (path, path_encoding) = told(path().as_os_str());
        for line in &mut lines.found {
            (line.path, line.path_encoding) = (path.clone(), path_encoding);
        }
        self.count.fetch_add(lines.found.len(), Ordering::Relaxed);
        self.found.lock().unwrap_or_else(PoisonError::into_inner).append(&mut lines.found);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) > self.request.limit as usize
    }

    fn answer(self, whole: bool) -> LinesFound {
        let limit = self.request.limit as usize;
        let mut matches = self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let truncated = !whole || matches.len() > limit;
        matches.sort_by(|one, other| (&one.path, one.line).cmp(&(&other.path, other.line)));
        matches.truncate(limit);
        LinesFound { matches, truncated }
    }
}

/// Opens what is a file, also where something else has its name by now, or a link stands on the way.
fn open(folder: &Found, below: &Path) -> io::Result<std::fs::File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let way = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let file = openat2(folder, below, flags, Mode::empty(), way)?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// The lines of one file, which are given its path at the end.
struct Lines<'a> {
    search: &'a Search<'a>,
    context: usize,
    before: Vec<String>,
    found: Vec<MatchedLine>,
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, matched: &SinkMatch<'_>) -> io::Result<bool> {
        let bytes = matched.bytes();
        let column = self.search.matcher.find(bytes).ok().flatten().map_or(0, |at| at.start());
        let text = line(bytes);
        self.follow(&text);
        self.found.push(MatchedLine {
            path: String::new(),
            path_encoding: None,
            line: matched.line_number().unwrap_or_default(),
            column: column as u64 + 1,
            before: self.before.clone(),
            after: Vec::new(),
            text: text.clone(),
        });
        self.remember(text);
        Ok(!self.search.leash.is_cut() && self.found.len() <= self.search.request.limit as usize)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let text = line(context.bytes());
        if *context.kind() != SinkContextKind::Before {
            self.follow(&text);
        }
        self.remember(text);
        Ok(true)
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        self.before.clear();
        Ok(true)
    }
}

impl Lines<'_> {
    /// A line that stands behind those that matched before it.
    fn follow(&mut self, text: &str) {
        let context = self.context;
        let close = self.found.iter_mut().rev().take(context);
        close.filter(|found| found.after.len() < context).for_each(|found| found.after.push(text.to_owned()));
    }

    /// A line that stands before those that match behind it.
    fn remember(&mut self, text: String) {
        if self.context == 0 {
            return;
        }
        if self.before.len() == self.context {
            self.before.remove(0);
        }
        self.before.push(text);
    }
}

fn line(bytes: &[u8]) -> String {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    String::from_utf8_lossy(&bytes[..bytes.len().min(LINE_BYTES)]).into_owned()
}
