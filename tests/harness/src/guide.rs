//! The README and the guide, whose commands are run by tests.

/// Paths from the root of the repository, with their content.
macro_rules! pages {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../", $path)))),*]
    };
}

/// The README and the pages of the guide: their paths, and their content. Their commands are run in this order.
pub const GUIDE: &[(&str, &str)] = pages![
    "README.md",
    "docs/guide/README.md",
    "docs/guide/remote.md",
    "docs/guide/dashboard.md",
    "docs/guide/vms.md",
    "docs/guide/templates.md",
    "docs/guide/egress.md",
    "docs/guide/workspace.md",
    "docs/guide/git.md",
    "docs/guide/tickets.md",
    "docs/guide/events-and-webhooks.md",
    "docs/guide/keys-and-accounts.md",
    "docs/guide/operation.md",
    "docs/guide/limits.md",
    "docs/guide/troubleshooting.md",
    "docs/guide/isolation.md",
    "docs/guide/benchmarks.md",
];

/// The blocks between lines of three backticks, in the order of [`GUIDE`].
pub fn blocks_of_guide() -> impl Iterator<Item = &'static str> {
    GUIDE.iter().flat_map(|(_, page)| page.split("```").skip(1).step_by(2))
}
