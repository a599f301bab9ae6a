//! The papers (README, guide, architecture, security and the others) name only what exists.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use skep_harness::GUIDE;

/// Names that look like paths of the repository, and what they are instead.
const ELSEWHERE: [(&str, &str); 8] = [
    ("error.rs", "a file of each crate"),
    ("target/pictures", "made by a test"),
    ("target/release", "made by the build"),
    ("target/release/skep-bench", "made by the build"),
    ("dist/", "made by the build of the dashboard"),
    ("src/api/schema.d.ts", "made by the build of the dashboard"),
    ("keeper/egress.json", "in the data directory"),
    ("workspaces/", "in the data directory"),
];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All files below a folder whose names end with this, as paths from the root of the repository, with their texts.
fn texts(folder: &str, ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(repository().join(folder)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = if folder.is_empty() { name } else { format!("{folder}/{name}") };
        let whole = repository().join(&path);
        if whole.is_dir() && !folder.is_empty() {
            found.extend(texts(&path, ending));
        } else if path.ends_with(ending) {
            found.push((path, fs::read_to_string(whole).unwrap()));
        }
    }
    found
}

fn papers() -> Vec<(String, String)> {
    let readme = "dashboard/README.md".to_owned();
    let dashboard = fs::read_to_string(repository().join(&readme)).unwrap();
    [texts("", ".md"), texts("docs", ".md"), vec![(readme, dashboard)]].concat()
}

/// The text without its blocks between lines of three backticks.
fn prose(paper: &str) -> String {
    paper.split("```").step_by(2).collect()
}

/// What stands in backticks in the text.
fn names(paper: &str) -> BTreeSet<String> {
    prose(paper).split('`').skip(1).step_by(2).map(|name| name.trim_end_matches("()").to_owned()).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Whether a name in backticks has the form of a path: it has a folder, or the ending of a source or a paper.
fn is_path(name: &str) -> bool {
    let is_relative = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '.');
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let has_ending =
        [".rs", ".md", ".py", ".ts", ".sh", ".css", ".svelte"].iter().any(|end| name.ends_with(end));
    is_relative && is_plain && (has_ending || name.trim_end_matches('/').contains('/') || name.ends_with('/'))
}

/// Whether a path exists: from the root, from the paper's folder, or from `crates/`, where `src/` after the crate may be left out.
fn path_exists(paper: &str, path: &str) -> bool {
    let folder = Path::new(paper).parent().unwrap();
    let (package, rest) = path.split_once('/').unwrap_or((path, ""));
    let places = [
        PathBuf::from(path),
        folder.join(path),
        Path::new("crates").join(path),
        Path::new("crates").join(package).join("src").join(rest),
    ];
    places.iter().any(|place| repository().join(place).exists())
}

fn is_item(name: &str) -> bool {
    let is_word = |part: &str| words(part).eq([part]);
    name.contains("::") && name.split("::").all(is_word)
}

/// Whether a file defines a type, a trait or a module of this name, or belongs to it.
fn defines(path: &str, text: &str, name: &str) -> bool {
    let parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    let package = name.strip_prefix("skep_").unwrap_or(name).replace('_', "-");
    if parts.contains(&name) || parts.get(1) == Some(&package.as_str()) {
        return true;
    }
    let words: Vec<&str> = words(text).collect();
    let keywords = ["struct", "enum", "trait", "type", "mod", "impl", "for"];
    words.windows(2).any(|pair| keywords.contains(&pair[0]) && pair[1] == name)
}

/// Whether a file has an item, a variant or a field of this name, or is a module of this name.
fn declares(path: &str, text: &str, name: &str) -> bool {
    if path.trim_end_matches(".rs").split('/').any(|part| part == name) {
        return true;
    }
    let words: Vec<&str> = words(text).collect();
    let keywords = ["fn", "const", "static", "struct", "enum", "trait", "type", "mod"];
    let is_item = words.windows(2).any(|pair| keywords.contains(&pair[0]) && pair[1] == name);
    let is_member = |line: &str| {
        let line = line.trim_start().trim_start_matches("pub").trim_start_matches("(crate)").trim_start();
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with([',', '(', ':', ' ']))
    };
    is_item || text.lines().any(is_member)
}

/// Whether a file that defines the first part of `Type::item` declares the last.
fn item_exists(sources: &[(String, String)], item: &str) -> bool {
    let (owner, rest) = item.split_once("::").unwrap();
    let last = rest.rsplit("::").next().unwrap();
    sources.iter().any(|(path, text)| defines(path, text, owner) && declares(path, text, last))
}

/// The anchors of the headings, as code hosts make them.
fn anchors(paper: &str) -> Vec<String> {
    let text = prose(paper);
    let headings = text
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| {
        let lower = heading.to_lowercase();
        let kept = lower.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(anchor).collect()
}

/// Whether the target of a link exists, with its anchor.
fn link_exists(papers: &[(String, String)], paper: &str, link: &str) -> bool {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() {
        repository().join(paper)
    } else {
        repository().join(paper).parent().unwrap().join(path)
    };
    let Ok(target) = target.canonicalize() else { return false };
    let is_target = |(path, _): &&(String, String)| repository().join(path).canonicalize().unwrap() == target;
    anchor.is_empty()
        || papers
            .iter()
            .find(is_target)
            .is_some_and(|(_, text)| anchors(text).iter().any(|one| one == anchor))
}

#[test]
fn paths_and_items_that_papers_name_exist() {
    let sources = [texts("crates", ".rs"), texts("tests", ".rs"), texts("benches", ".rs")].concat();
    let mut wrong = Vec::new();
    for (paper, text) in papers() {
        for name in names(&text) {
            let is_elsewhere = ELSEWHERE.iter().any(|(other, _)| *other == name);
            let is_wrong_path = is_path(&name) && !is_elsewhere && !path_exists(&paper, &name);
            if is_wrong_path || (is_item(&name) && !item_exists(&sources, &name)) {
                wrong.push(format!("{paper}: `{name}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "not in the repository:\n{}", wrong.join("\n"));
    let named: BTreeSet<String> = papers().iter().flat_map(|(_, text)| names(text)).collect();
    for (name, what) in ELSEWHERE {
        assert!(named.contains(name), "no paper names `{name}` ({what})");
    }
}

#[test]
fn links_between_papers_lead_somewhere() {
    let papers = papers();
    let mut wrong = Vec::new();
    for (paper, text) in &papers {
        let text = prose(text);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link);
        let relative = links.filter(|link| !link.contains("://"));
        wrong.extend(
            relative.filter(|link| !link_exists(&papers, paper, link)).map(|link| format!("{paper}: {link}")),
        );
    }
    assert!(wrong.is_empty(), "these lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn the_commands_of_each_page_of_the_guide_are_run() {
    let pages = texts("docs/guide", ".md").into_iter().map(|(path, _)| path).chain(["README.md".to_owned()]);
    let run: BTreeSet<String> = GUIDE.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(pages.collect::<BTreeSet<_>>(), run);
}

/// The control of the tests above.
#[test]
fn what_does_not_exist_is_found() {
    let sources = texts("crates", ".rs");
    for (name, exists) in [
        ("workspace/git/locate.rs", true),
        ("crates/workspace/src/git", true),
        ("workspace/git/native.rs", false),
    ] {
        assert!(is_path(name) && path_exists("README.md", name) == exists, "{name}");
    }
    for (name, exists) in [
        ("OperationRunner::run", true),
        ("skep_workspace::run_by_name", true),
        ("Place::no_such_method", false),
        ("Place::clone", false),
        ("NoSuchType::run", false),
    ] {
        assert!(is_item(name) && item_exists(&sources, name) == exists, "{name}");
    }
    for name in ["GET /api/files", "http://host/x", "skep", "::1", "a b/c"] {
        assert!(!is_path(name) && !is_item(name), "{name}");
    }
    let papers = papers();
    for (link, exists) in [
        ("docs/guide/vms.md", true),
        ("ARCHITECTURE.md#glossary", true),
        ("docs/none.md", false),
        ("ARCHITECTURE.md#none", false),
    ] {
        assert_eq!(link_exists(&papers, "README.md", link), exists, "{link}");
    }
}
