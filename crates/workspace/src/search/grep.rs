//! Searching for lines in files.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use grep_matcher::Matcher;
use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{
    BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch,
};
use ignore::{DirEntry, WalkState};
use skep_api::{
    budget::{MAX_ANSWER_BYTES, json_len},
    files::{GrepFiles, LinesFound, MatchedLine},
    path::encode_path,
};

use super::{
    Cancellation,
    open::open,
    pattern::{COMPILED_BYTES, Pattern},
    walk::{Scope, walk_below},
};
use crate::{
    Error, Roots,
    roots::{FinalLink, PathHandle},
};

/// The longest line in an answer, in bytes. Longer lines are truncated.
const MAX_LINE_BYTES: usize = 4 << 10;
/// The memory that a search may use for one line with its context, in bytes.
const SEARCHER_MEMORY_BYTES: usize = 4 << 20;
/// The length of a match as JSON without its texts, in bytes.
const MATCH_BYTES: usize = 100;

pub(super) fn grep(
    roots: &Roots,
    request: &GrepFiles,
    cancellation: &Cancellation,
) -> Result<LinesFound, Error> {
    let refused = |field, reason: String| Error::InvalidPattern { field, reason };
    let matcher = RegexMatcherBuilder::new()
        .size_limit(COMPILED_BYTES)
        .line_terminator(Some(b'\n'))
        .build(&request.pattern);
    let matcher =
        matcher.map_err(|error| refused("pattern", format!("is not a valid regex for lines: {error}")))?;
    let glob = request.glob.as_deref().map(Pattern::glob).transpose();
    let glob = glob.map_err(|reason| refused("glob", format!("is not a valid glob: {reason}")))?;
    let path = request.path.as_path();
    let search = Search {
        matcher,
        request,
        cancellation,
        found: Mutex::default(),
        count: AtomicUsize::new(0),
        bytes: AtomicUsize::new(0),
        is_partial: AtomicBool::new(false),
    };
    let start = roots.find(path, FinalLink::Follow)?;
    let whole = if start.is_directory() {
        search.folder(&start, glob.as_ref())? && !cancellation.is_cancelled()
    } else {
        crate::files::require_file(&start, path)?;
        search
            .file(&mut search.searcher(), start.open_for_reading(), path.into())
            .map_err(|error| Error::of_path(path, &error))?;
        !cancellation.is_cancelled()
    };
    Ok(search.answer(whole))
}

/// A running search, shared by its threads.
struct Search<'a> {
    matcher: RegexMatcher,
    request: &'a GrepFiles,
    cancellation: &'a Cancellation,
    found: Mutex<Vec<MatchedLine>>,
    count: AtomicUsize,
    /// The approximate size of the results as JSON and in memory.
    bytes: AtomicUsize,
    /// Whether the rest of a file was skipped.
    is_partial: AtomicBool,
}

impl Search<'_> {
    fn folder(&self, start: &PathHandle, glob: Option<&Pattern>) -> Result<bool, Error> {
        let scope = Scope { hidden: true, gitignore: false };
        walk_below(start, scope, self.cancellation, || {
            // One searcher per thread, so that its buffers are reused.
            let mut searcher = self.searcher();
            move |entry: &DirEntry, below: &Path| {
                let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
                if is_file && glob.is_none_or(|glob| glob.matches(below)) {
                    let path = self.request.path.as_path().join(below);
                    // Files that cannot be read or were removed have no matches.
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
            .heap_limit(Some(SEARCHER_MEMORY_BYTES))
            .before_context(context)
            .after_context(context)
            .build()
    }

    fn file(
        &self,
        searcher: &mut Searcher,
        file: io::Result<std::fs::File>,
        path: PathBuf,
    ) -> io::Result<()> {
        let context = self.request.context as usize;
        let path_bytes = path.as_os_str().len();
        let mut lines =
            LineSink { search: self, context, path_bytes, before: VecDeque::new(), found: Vec::new() };
        let searched = searcher.search_reader(
            &self.matcher,
            CancellableFile { file: file?, cancellation: self.cancellation },
            &mut lines,
        );
        match searched {
            // An error of the searcher itself: a line with its context exceeds the memory limit.
            Err(error) if error.raw_os_error().is_none() => {
                self.is_partial.store(true, Ordering::Relaxed);
            }
            searched => searched?,
        }
        if lines.found.is_empty() {
            return Ok(());
        }
        let (path, path_encoding) = encode_path(path.as_os_str());
        let path: Arc<str> = path.into();
        for line in &mut lines.found {
            (line.path, line.path_encoding) = (Arc::clone(&path), path_encoding);
        }
        self.count.fetch_add(lines.found.len(), Ordering::Relaxed);
        self.found.lock().unwrap_or_else(PoisonError::into_inner).append(&mut lines.found);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.count.load(Ordering::Relaxed) > self.request.limit as usize || self.is_over_budget()
    }

    fn is_over_budget(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > MAX_ANSWER_BYTES
    }

    /// Adds to the size of the results. Returns whether they still fit into the answer.
    fn reserve(&self, bytes: usize) -> bool {
        self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes <= MAX_ANSWER_BYTES
    }

    fn answer(self, whole: bool) -> LinesFound {
        let limit = self.request.limit as usize;
        let mut matches = self.found.into_inner().unwrap_or_else(PoisonError::into_inner);
        let whole = whole && !self.is_partial.into_inner();
        let truncated = !whole || matches.len() > limit || self.bytes.into_inner() > MAX_ANSWER_BYTES;
        matches.sort_by(|one, other| (&one.path, one.line).cmp(&(&other.path, other.line)));
        matches.truncate(limit);
        LinesFound { matches, truncated }
    }
}

/// A file that ends early when the search is cancelled.
struct CancellableFile<'a> {
    file: std::fs::File,
    cancellation: &'a Cancellation,
}

impl io::Read for CancellableFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.cancellation.is_cancelled() { Ok(0) } else { self.file.read(buffer) }
    }
}

/// A line and its length as JSON, in bytes.
#[derive(Clone)]
struct Line {
    text: Arc<str>,
    bytes: usize,
}

/// Collects the matches of one file. Their path is filled in at the end.
struct LineSink<'a> {
    search: &'a Search<'a>,
    context: usize,
    path_bytes: usize,
    before: VecDeque<Line>,
    found: Vec<MatchedLine>,
}

impl Sink for LineSink<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, matched: &SinkMatch<'_>) -> io::Result<bool> {
        let bytes = matched.bytes();
        let column = self.search.matcher.find(bytes).ok().flatten().map_or(0, |at| at.start());
        let line = Line::of(bytes);
        let before: usize = self.before.iter().map(Line::cost).sum();
        let whole = size_of::<MatchedLine>() + MATCH_BYTES + self.path_bytes + line.cost() + before;
        if !self.add_to_trailing_context(&line) || !self.search.reserve(whole) {
            return Ok(false);
        }
        self.found.push(MatchedLine {
            path: Arc::default(),
            path_encoding: None,
            line: matched.line_number().unwrap_or_default(),
            column: column as u64 + 1,
            before: self.before.iter().map(|line| Arc::clone(&line.text)).collect(),
            after: Vec::new(),
            text: Arc::clone(&line.text),
        });
        self.keep_for_leading_context(line);
        Ok(!self.search.cancellation.is_cancelled() && self.found.len() <= self.search.request.limit as usize)
    }

    fn context(&mut self, _: &Searcher, context: &SinkContext<'_>) -> io::Result<bool> {
        let line = Line::of(context.bytes());
        let fits = *context.kind() == SinkContextKind::Before || self.add_to_trailing_context(&line);
        self.keep_for_leading_context(line);
        Ok(fits)
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        self.before.clear();
        Ok(true)
    }
}

impl LineSink<'_> {
    /// Adds a line to the trailing context of previous matches. Returns whether it still fits into the answer.
    fn add_to_trailing_context(&mut self, line: &Line) -> bool {
        let (context, search) = (self.context, self.search);
        let mut close = self.found.iter_mut().rev().take(context).filter(|found| found.after.len() < context);
        close.all(|found| {
            let fits = search.reserve(line.cost());
            if fits {
                found.after.push(Arc::clone(&line.text));
            }
            fits
        })
    }

    /// Keeps a line as leading context of later matches.
    fn keep_for_leading_context(&mut self, line: Line) {
        if self.context == 0 {
            return;
        }
        if self.before.len() == self.context {
            self.before.pop_front();
        }
        self.before.push_back(line);
    }
}

impl Line {
    fn of(bytes: &[u8]) -> Self {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let text: Arc<str> = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_LINE_BYTES)]).into();
        Self { bytes: json_len(&*text), text }
    }

    /// The bytes that one more occurrence of the line takes.
    fn cost(&self) -> usize {
        self.bytes + size_of::<Arc<str>>()
    }
}
