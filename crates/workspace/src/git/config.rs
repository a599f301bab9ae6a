//! Config overrides, which prevent a repository's config from starting programs.
//!
//! A repository's author controls its config. git-config(1) documents the keys that start programs. Keys with a fixed
//! name are always overridden here. Keys with a name that the repository chooses (of a filter, a merge driver, a
//! remote) are overridden for each name in its config. A config with keys that cannot be overridden is refused. The
//! overrides travel in `GIT_CONFIG_PARAMETERS`, as those of `git -c` do, so that gits started by git, for example in
//! submodules, have them too.

#[cfg(test)]
mod tests;

use std::ffi::OsString;

use super::{
    GitError,
    filters::{GitFilter, LFS},
    large_files,
};

/// Overrides for keys with a fixed name. The programs that they name do nothing.
const FIXED: &[(&str, &str)] = &[
    ("core.hookspath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.untrackedcache", "false"),
    ("core.pager", "cat"),
    ("core.editor", ":"),
    ("core.askpass", ""),
    ("core.sshcommand", "false"),
    ("core.alternaterefscommand", "true"),
    ("core.attributesfile", "/dev/null"),
    ("core.excludesfile", "/dev/null"),
    ("core.quotepath", "false"),
    ("core.commentchar", "#"),
    ("sequence.editor", ":"),
    ("diff.external", ""),
    ("diff.ignoresubmodules", "dirty"),
    ("diff.submodule", "short"),
    ("diff.orderfile", "/dev/null"),
    ("diff.noprefix", "false"),
    ("diff.mnemonicprefix", "false"),
    ("diff.relative", "false"),
    ("status.submodulesummary", "false"),
    ("submodule.recurse", "false"),
    ("fetch.recursesubmodules", "false"),
    ("push.recursesubmodules", "no"),
    ("credential.helper", ""),
    ("credential.interactive", "false"),
    ("gpg.program", "false"),
    ("gpg.openpgp.program", "false"),
    ("gpg.x509.program", "false"),
    ("gpg.ssh.program", "false"),
    ("gpg.ssh.defaultkeycommand", "false"),
    ("commit.gpgsign", "false"),
    ("commit.template", ""),
    ("tag.gpgsign", "false"),
    ("push.gpgsign", "false"),
    ("log.showsignature", "false"),
    ("log.mailmap", "false"),
    ("merge.verifysignatures", "false"),
    ("rebase.autostash", "false"),
    ("merge.autostash", "false"),
    ("rebase.updaterefs", "false"),
    ("rerere.enabled", "false"),
    ("i18n.logoutputencoding", "UTF-8"),
    ("i18n.commitencoding", "UTF-8"),
    // Background work would outlive its request.
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("receive.autogc", "false"),
    ("receive.denycurrentbranch", "refuse"),
    ("transfer.bundleuri", "false"),
    ("init.templatedir", ""),
    // For a clone of a remote without commits and branch names.
    ("init.defaultbranch", "main"),
    ("safe.directory", "*"),
    ("advice.detachedhead", "false"),
    ("advice.addembeddedrepo", "false"),
];

/// Keys and values that win over those of any config file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigOverrides {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    /// Filters that the operator allowed.
    filters: Vec<GitFilter>,
}

/// One entry of a repository's config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigEntry {
    /// Section and name in lower case; the subsection between them unchanged.
    pub(super) key: Vec<u8>,
    /// `None` for a key without `=`.
    pub(super) value: Option<Vec<u8>>,
}

impl Default for ConfigOverrides {
    fn default() -> Self {
        let all = FIXED.iter().map(|(key, value)| (key.as_bytes().into(), value.as_bytes().into()));
        Self { entries: all.collect(), filters: Vec::new() }
    }
}

impl ConfigOverrides {
    /// The fixed overrides and those of the operator's filters.
    pub(super) fn with_filters(filters: &[GitFilter]) -> Self {
        let own = filters.iter().flat_map(GitFilter::overrides);
        let settings = own.fold(Self::default(), |settings, (key, value)| settings.with(key, value));
        let settings = Self { filters: filters.to_vec(), ..settings };
        if filters.is_empty() {
            return settings;
        }
        // Git-lfs cannot reach the network unless a connection is prepared for it: nothing listens at this proxy address.
        // The alias keeps a repository from replacing a missing git-lfs.
        settings.with("http.proxy", "http://0.0.0.0:0").with("alias.lfs", "!false")
    }

    /// Whether the operator allowed the filter of git-lfs.
    pub(super) fn has_large_files(&self) -> bool {
        self.filters.iter().any(|filter| filter.name == LFS)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn with(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.entries.push((key.into(), value.into()));
        self
    }

    /// Adds overrides for entries of a repository's config that would start programs.
    ///
    /// # Errors
    /// [`GitError::Hostile`] for entries that cannot be overridden.
    pub(super) fn override_config(&mut self, config: &[ConfigEntry]) -> Result<(), GitError> {
        for entry @ ConfigEntry { key, .. } in config {
            if self.has_large_files() && has_several_meanings(entry) {
                return Err(hostile(key, "would be read as another setting by git-lfs"));
            }
            let Some((section, subsection, name)) = split_key(key) else { continue };
            let set = |name: &str| [section, b".", subsection, b".", name.as_bytes()].concat();
            let named = !subsection.is_empty();
            let known = self.filters.iter().find(|filter| filter.name.as_bytes() == subsection);
            match (section, name) {
                (b"include" | b"includeif", _) => return Err(hostile(key, "includes other settings")),
                (b"remote", b"vcs") => {
                    return Err(hostile(key, "names a program that would speak to the remote"));
                }
                // Git 2.54 and later run `hook.<name>.command` at the events that `hook.<name>.event` names.
                (b"hook", _) => return Err(hostile(key, "would start a program as a hook")),
                (b"filter", b"process") if known.is_some_and(|known| !known.has_process()) => {
                    return Err(hostile(key, "replaces a filter that is allowed"));
                }
                // The operator's definition of this filter is among the overrides already.
                (b"filter", _) if known.is_some() => {}
                (b"filter", b"clean" | b"smudge" | b"process") if named => {
                    self.entries.push((key.clone(), Vec::new()));
                    self.entries.push((set("required"), b"false".into()));
                }
                (b"lfs", name) if self.has_large_files() && !large_files::is_harmless(name) => {
                    return Err(hostile(key, "changes what is started for large files"));
                }
                _ => self.entries.extend(
                    harmless_replacement(section, name)
                        .filter(|_| named)
                        .map(|value| (key.clone(), value.into())),
                ),
            }
        }
        Ok(())
    }

    /// The value of `GIT_CONFIG_PARAMETERS`: each part quoted as for a shell (`sq_quote`, quote.c).
    pub(super) fn as_parameters(&self) -> OsString {
        let mut text = Vec::new();
        for (key, value) in &self.entries {
            if !text.is_empty() {
                text.push(b' ');
            }
            quote(key, &mut text);
            text.push(b'=');
            quote(value, &mut text);
        }
        std::os::unix::ffi::OsStringExt::from_vec(text)
    }
}

/// Whether git-lfs would read an entry differently: it splits the output of `git config --list` at line ends, and each line at the
/// first `=`. The names of branches and submodules may contain one.
pub(super) fn has_several_meanings(ConfigEntry { key, value }: &ConfigEntry) -> bool {
    let is_named_freely = key.starts_with(b"branch.") || key.starts_with(b"submodule.");
    (key.contains(&b'=') && !is_named_freely) || value.as_deref().is_some_and(|value| value.contains(&b'\n'))
}

/// The harmless command that replaces one of the repository's choice.
fn harmless_replacement(section: &[u8], name: &[u8]) -> Option<&'static [u8]> {
    match (section, name) {
        (b"diff", b"command") | (b"trailer", b"command" | b"cmd") => Some(b"true"),
        (b"diff", b"textconv") => Some(b"cat"),
        // A failing driver leaves a conflict; one that succeeds without merging would lose changes.
        (b"merge", b"driver") | (b"gpg", b"program" | b"defaultkeycommand") => Some(b"false"),
        (b"remote", b"uploadpack") => Some(b"git-upload-pack"),
        (b"remote", b"receivepack") => Some(b"git-receive-pack"),
        _ => None,
    }
}

/// Refuses config that redirects network access away from the remote's URL.
///
/// # Errors
/// [`GitError::Hostile`].
pub(super) fn check_network_config(config: &[ConfigEntry]) -> Result<(), GitError> {
    for ConfigEntry { key, .. } in config {
        let Some((section, _, name)) = split_key(key) else { continue };
        match (section, name) {
            (b"url", _) => return Err(hostile(key, "rewrites the URLs of remotes")),
            (b"http", b"postbuffer" | b"version" | b"lowspeedlimit" | b"lowspeedtime") => {}
            (b"http", _) => return Err(hostile(key, "changes how remotes are reached")),
            (b"remote", b"proxy" | b"proxyauthmethod") => {
                return Err(hostile(key, "changes how the remote is reached"));
            }
            (b"fetch", b"bundleuri") => return Err(hostile(key, "fetches from elsewhere")),
            _ => {}
        }
    }
    Ok(())
}

fn hostile(key: &[u8], why: &'static str) -> GitError {
    GitError::Hostile { what: format!("setting `{}`", String::from_utf8_lossy(key)), why }
}

/// Splits a key into section, subsection (empty if there is none) and name.
pub(super) fn split_key(key: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let first = key.iter().position(|byte| *byte == b'.')?;
    let last = key.iter().rposition(|byte| *byte == b'.')?;
    let subsection = if first < last { &key[first + 1..last] } else { &[][..] };
    Some((&key[..first], subsection, &key[last + 1..]))
}

fn quote(text: &[u8], into: &mut Vec<u8>) {
    into.push(b'\'');
    for byte in text {
        match byte {
            b'\'' | b'!' => into.extend([b'\'', b'\\', *byte, b'\'']),
            byte => into.push(*byte),
        }
    }
    into.push(b'\'');
}

/// Parses the output of `git config --list -z`.
pub(super) fn parse_config_list(text: &[u8]) -> Vec<ConfigEntry> {
    let entries = text.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
    entries
        .map(|entry| match entry.iter().position(|byte| *byte == b'\n') {
            Some(end) => ConfigEntry { key: entry[..end].into(), value: Some(entry[end + 1..].into()) },
            None => ConfigEntry { key: entry.into(), value: None },
        })
        .collect()
}

/// Parses a config file with the simple syntax that git itself writes. `None` for a file that needs git to be read:
/// quotes, escapes, comments, several entries in one line.
pub(super) fn parse_simple_config(text: &[u8]) -> Option<Vec<ConfigEntry>> {
    let mut own = Vec::new();
    let mut section: Option<Vec<u8>> = None;
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        if let Some(head) = line.strip_prefix(b"[") {
            section = Some(parse_simple_section(head.strip_suffix(b"]")?)?);
            continue;
        }
        let line = line.strip_prefix(b"\t")?;
        let sign = line.windows(3).position(|window| window == b" = ")?;
        let (name, value) = (&line[..sign], &line[sign + 3..]);
        let fits = |byte: &u8| (b' '..0x7f).contains(byte) && !b"\"\\#;".contains(byte);
        let trimmed = !value.starts_with(b" ") && !value.ends_with(b" ") && !value.is_empty();
        if !is_simple_name(name) || !trimmed || !value.iter().all(fits) {
            return None;
        }
        let key = [section.as_deref()?, b".", &name.to_ascii_lowercase()].concat();
        own.push(ConfigEntry { key, value: Some(value.into()) });
    }
    Some(own)
}

/// Parses `section` or `section "subsection"`.
fn parse_simple_section(head: &[u8]) -> Option<Vec<u8>> {
    let Some(blank) = head.iter().position(|byte| *byte == b' ') else {
        return is_simple_name(head).then(|| head.to_ascii_lowercase());
    };
    let subsection = head[blank + 1..].strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let fits = |byte: &u8| (b' '..0x7f).contains(byte) && !b"\"\\".contains(byte);
    let plain = is_simple_name(&head[..blank]) && !subsection.is_empty() && subsection.iter().all(fits);
    plain.then(|| [&head[..blank].to_ascii_lowercase(), &b"."[..], subsection].concat())
}

fn is_simple_name(name: &[u8]) -> bool {
    name.first().is_some_and(u8::is_ascii_alphabetic) && name.iter().all(u8::is_ascii_alphanumeric)
}

/// The last value of a key, which is the effective one.
pub(super) fn last_value<'a>(config: &'a [ConfigEntry], key: &[u8]) -> Option<&'a [u8]> {
    config.iter().rev().find(|own| own.key == key)?.value.as_deref()
}
