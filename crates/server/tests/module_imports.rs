//! Checks which modules of the server import which others: the rules in [`FORBIDDEN`], and that no imports form a
//! circle.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// Modules that may import everything, and that no other module imports.
const ROOTS: [&str; 3] = ["lib", "app", "run"];
/// Modules that are too large to be one node of the graph: each of their own modules is one.
const DIVIDED: [&str; 5] = ["door", "background", "routes", "openapi", "events"];
/// The first must not import the second.
const FORBIDDEN: [(&str, &str); 5] = [
    ("door", "routes"),
    ("door", "background"),
    ("background", "routes"),
    ("background", "door"),
    ("routes", "background"),
];

/// A source file; its path is relative to `src`.
struct Source {
    path: String,
    text: String,
}

/// The name of an item in the imports of a file, with the number of its line.
struct Import {
    line: usize,
    /// The path from the crate's root.
    target: Vec<String>,
}

impl Source {
    /// The path of the file's module from the crate's root, empty for `lib.rs`.
    fn module(&self) -> Vec<String> {
        let path = self.path.trim_end_matches(".rs");
        let path = path.strip_suffix("/mod").unwrap_or(path);
        if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
    }

    fn top(&self) -> String {
        self.module().first().cloned().unwrap_or_else(|| "lib".to_owned())
    }

    /// All paths that begin with `crate::` or `super::`, in `use` declarations and elsewhere.
    fn imports(&self) -> Vec<Import> {
        let text = without_comments(&self.text);
        let mut found = Vec::new();
        for start in ["crate::", "super::"] {
            for (at, _) in text.match_indices(start) {
                let before = text[..at].chars().next_back();
                let inside_of_a_path = text[..at].ends_with("super::") || text[..at].ends_with("self::");
                if inside_of_a_path || before.is_some_and(|before| before.is_alphanumeric() || before == '_')
                {
                    continue;
                }
                let supers = text[at..].split("::").take_while(|part| *part == "super").count();
                let mut base = self.module();
                // In an inline module, `super` is the file's own module: this takes one step too many, which finds
                // more imports rather than fewer.
                base.truncate(if start == "crate::" { 0 } else { base.len().saturating_sub(supers) });
                let rest = at + start.len() * supers.max(1);
                names(&text, rest, &base, &mut found);
            }
        }
        found
    }
}

/// The text without its line comments.
fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| {
        // The slashes of a URL are not a comment.
        let comment = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
        comment.map_or(line, |(at, _)| &line[..at])
    });
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Adds the paths of the use tree that begins at this byte. Returns the byte behind the tree.
fn names(text: &str, begin: usize, base: &[String], found: &mut Vec<Import>) -> usize {
    let mut at = begin + text[begin..].len() - text[begin..].trim_start().len();
    if text[at..].starts_with('{') {
        loop {
            at = names(text, at + 1, base, found);
            at += text[at..].find([',', '}']).unwrap_or(text.len() - at);
            if !text[at..].starts_with(',') {
                return (at + 1).min(text.len());
            }
        }
    }
    let name: String = text[at..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    if name.is_empty() {
        return at;
    }
    let line = text[..at].matches('\n').count() + 1;
    at += name.len();
    let target: Vec<String> = base.iter().cloned().chain([name]).collect();
    let known = found.len();
    if text[at..].starts_with("::") {
        at = names(text, at + 2, &target, found);
    }
    // What follows the name may be no path, such as `::*` or the type arguments of a function.
    if found.len() == known {
        found.push(Import { line, target });
    }
    at
}

/// The node of the graph in which an item is.
fn node(path: &[String], modules: &BTreeSet<String>) -> String {
    match path {
        [top, inner, ..]
            if DIVIDED.contains(&top.as_str()) && modules.contains(&format!("{top}/{inner}")) =>
        {
            format!("{top}/{inner}")
        }
        [top, ..] => top.clone(),
        [] => "lib".to_owned(),
    }
}

/// What is wrong with the imports of these sources, a line for each fault.
fn faults(sources: &[Source]) -> Vec<String> {
    let modules: BTreeSet<String> = sources
        .iter()
        .flat_map(|source| {
            let path = source.module();
            [path.first().cloned(), path.get(..2).map(|two| two.join("/"))]
        })
        .flatten()
        .collect();
    let mut faults = Vec::new();
    let mut graph: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| !ROOTS.contains(&source.top().as_str())) {
        let from = source.top();
        for import in source.imports() {
            let [to, ..] = import.target.as_slice() else { continue };
            let place = format!("{}:{}", source.path, import.line);
            if ROOTS.contains(&to.as_str()) || !modules.contains(to) {
                faults.push(format!("{place}: `{to}` is imported from the crate's root; name its module"));
            } else if FORBIDDEN.contains(&(from.as_str(), to.as_str())) {
                faults.push(format!("{place}: {from} must not import {to}"));
            }
            let (inner, outer) = (node(&source.module(), &modules), node(&import.target, &modules));
            // The module of a folder declares those inside of it.
            if inner != outer && inner != *to && outer != from {
                graph.entry(inner).or_default().entry(outer).or_insert(place);
            }
        }
    }
    faults.extend(circle(&graph).map(|edges| format!("the imports form a circle: {}", edges.join(", "))));
    faults
}

/// The imports of one circle, if there is any.
fn circle(graph: &BTreeMap<String, BTreeMap<String, String>>) -> Option<Vec<String>> {
    graph.keys().find_map(|start| {
        // The shortest circle through this node, by breadth-first search.
        let mut paths = vec![(start, Vec::new())];
        let mut seen = BTreeSet::new();
        while !paths.is_empty() {
            let mut next = Vec::new();
            for (at, path) in paths {
                for (to, place) in graph.get(at).into_iter().flatten() {
                    let mut path: Vec<String> = path.clone();
                    path.push(format!("{at} -> {to} ({place})"));
                    if to == start {
                        return Some(path);
                    }
                    if seen.insert(to) {
                        next.push((to, path));
                    }
                }
            }
            paths = next;
        }
        None
    })
}

/// The sources below a folder.
fn read(folder: &Path, root: &Path, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, root, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            sources.push(Source { path, text });
        }
    }
}

fn made_up(sources: &[(&str, &str)]) -> Vec<String> {
    let sources =
        sources.iter().map(|(path, text)| Source { path: (*path).to_owned(), text: (*text).to_owned() });
    faults(&sources.collect::<Vec<_>>())
}

#[test]
fn no_module_imports_what_it_must_not_and_no_imports_form_a_circle() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    read(&root, &root, &mut sources);
    assert!(sources.len() > 100, "{} sources", sources.len());
    let found: usize = sources.iter().map(|source| source.imports().len()).sum();
    assert!(found > 500, "{found} imports");
    let faults = faults(&sources);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_circle_is_reported_with_each_of_its_imports() {
    let faults = made_up(&[
        ("lib.rs", "mod one;\nmod two;\nmod three;\nmod four;\n"),
        ("one.rs", "use std::fmt;\n\nuse crate::{\n    four::Four,\n    two::{Two, more::{A, B}},\n};\n"),
        ("two/mod.rs", "mod more;\npub(crate) use self::more::Two;\n"),
        ("two/more.rs", "use super::super::three;\n"),
        ("three.rs", "fn url() -> &'static str {\n    crate::one::URL // crate::four\n}\n"),
        ("four.rs", "//! Uses [`crate::one`].\n"),
    ]);
    let circle = "the imports form a circle: one -> two (one.rs:5), two -> three (two/more.rs:1), three -> one \
                  (three.rs:2)";
    assert_eq!(faults, [circle]);
}

#[test]
fn a_circle_inside_of_a_divided_module_is_reported() {
    let faults = made_up(&[
        ("door/mod.rs", "mod limits;\nmod origin;\n"),
        ("door/limits.rs", "use super::origin::Origin;\n"),
        ("door/origin.rs", "use crate::door::{limits::Limits};\n"),
    ]);
    let circle =
        "door/limits -> door/origin (door/limits.rs:1), door/origin -> door/limits (door/origin.rs:1)";
    assert_eq!(faults, [format!("the imports form a circle: {circle}")]);
}

#[test]
fn each_forbidden_import_is_reported_with_its_line() {
    for (from, to) in FORBIDDEN {
        let text = format!("use crate::{{\n    error::Error,\n    {to}::Thing,\n}};\n");
        let path = format!("{from}/inner.rs");
        let faults =
            made_up(&[(&path, &text), ("error.rs", ""), (&format!("{to}/mod.rs"), ""), ("lib.rs", "")]);
        assert_eq!(faults, [format!("{path}:3: {from} must not import {to}")]);
    }
}

#[test]
fn imports_of_the_root_are_reported() {
    let faults = made_up(&[
        ("lib.rs", "pub use app::App;\n"),
        ("app.rs", "use crate::one::One;\n"),
        ("one.rs", "use crate::{App, app::App};\nuse super::run;\n"),
    ]);
    assert_eq!(
        faults,
        [
            "one.rs:1: `App` is imported from the crate's root; name its module",
            "one.rs:1: `app` is imported from the crate's root; name its module",
            "one.rs:2: `run` is imported from the crate's root; name its module",
        ]
    );
}
