//! Presets of egress policies: the hosts that usual registries, code hosts and model APIs need, by name.
//!
//! A host is written as a domain with the labels before it, because the parts of one service belong together.

use std::fmt;

/// Hosts that a policy allows by one name. A newer release may have other hosts under the same name.
#[derive(Clone, Copy)]
pub struct EgressPreset {
    /// The name in a policy.
    pub name: &'static str,
    /// What the hosts are for.
    pub purpose: &'static str,
    domains: &'static [Domain],
}

/// Hosts of one domain. An empty label is the domain itself.
struct Domain {
    name: &'static str,
    top: &'static str,
    labels: &'static [&'static str],
}

const fn domain(name: &'static str, top: &'static str, labels: &'static [&'static str]) -> Domain {
    Domain { name, top, labels }
}

const fn preset(name: &'static str, purpose: &'static str, domains: &'static [Domain]) -> EgressPreset {
    EgressPreset { name, purpose, domains }
}

impl EgressPreset {
    /// All presets, in the order of their names. A name stays, because stored policies have it. Other hosts need another
    /// protocol of the egress process, which a keeper adopts with the hosts of the release that started it.
    pub const ALL: &'static [Self] = &[
        preset("anthropic", "the API of Anthropic's models", &[domain("anthropic", "com", &["api"])]),
        preset("debian", "packages for apt in Debian", &[domain("debian", "org", &["deb", "security"])]),
        preset(
            "docker",
            "images of Docker Hub",
            &[
                domain("docker", "io", &["registry-1", "auth"]),
                // Layers are downloaded from either of these.
                domain("docker", "com", &["production.cloudflare", "production.cloudfront"]),
                domain(
                    "r2.cloudflarestorage",
                    "com",
                    &["docker-images-prod.6aa30f8b08e16409b46e0173d6de2f56"],
                ),
            ],
        ),
        preset(
            "github",
            "repositories, releases and the API of GitHub",
            &[
                domain("github", "com", &["", "api", "codeload"]),
                domain("githubusercontent", "com", &["raw", "objects", "release-assets"]),
            ],
        ),
        preset("gitlab", "repositories and the API of gitlab.com", &[domain("gitlab", "com", &[""])]),
        preset(
            "go",
            "modules and toolchains of Go",
            &[
                domain("golang", "org", &["proxy", "sum"]),
                domain("go", "dev", &[""]),
                domain("google", "com", &["dl"]),
                // The module proxy redirects downloads there. The host has the buckets of everybody.
                domain("googleapis", "com", &["storage"]),
            ],
        ),
        preset(
            "google-ai",
            "the API of Gemini models",
            &[domain("googleapis", "com", &["generativelanguage"])],
        ),
        preset(
            "java",
            "packages for Maven and Gradle",
            &[
                domain("maven", "org", &["repo1"]),
                domain("apache", "org", &["repo.maven"]),
                // The portal of plugins redirects to the second one.
                domain("gradle", "org", &["plugins", "plugins-artifacts", "services", "downloads"]),
            ],
        ),
        preset(
            "node",
            "packages for npm, pnpm and yarn, and Node itself",
            &[
                domain("npmjs", "org", &["registry"]),
                domain("yarnpkg", "com", &["registry"]),
                domain("nodejs", "org", &[""]),
            ],
        ),
        preset("openai", "the API of OpenAI's models", &[domain("openai", "com", &["api"])]),
        preset(
            "python",
            "packages for pip and uv",
            &[domain("pypi", "org", &[""]), domain("pythonhosted", "org", &["files"])],
        ),
        preset("ruby", "packages for gem and bundler", &[domain("rubygems", "org", &["", "index"])]),
        preset(
            "rust",
            "packages for cargo, and toolchains for rustup",
            &[domain("crates", "io", &["", "index", "static"]), domain("rust-lang", "org", &["static"])],
        ),
        preset("ubuntu", "packages for apt in Ubuntu", &[domain("ubuntu", "com", &["archive", "security"])]),
    ];

    /// The preset of this name.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|preset| preset.name == name).copied()
    }

    /// The hosts that it allows.
    pub fn hosts(self) -> impl Iterator<Item = String> {
        self.domains.iter().flat_map(|domain| domain.labels.iter().map(|label| domain.host(label)))
    }

    /// Whether it allows a normalized name.
    pub(super) fn names(self, name: &str) -> bool {
        self.hosts().any(|host| host == name)
    }
}

impl Domain {
    fn host(&self, label: &str) -> String {
        let Self { name, top, .. } = self;
        if label.is_empty() { format!("{name}.{top}") } else { format!("{label}.{name}.{top}") }
    }
}

impl PartialEq for EgressPreset {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for EgressPreset {}

impl fmt::Debug for EgressPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EgressPreset").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::is_name;

    #[test]
    fn presets_have_valid_hosts_and_are_found_by_name() {
        assert!(EgressPreset::ALL.is_sorted_by_key(|preset| preset.name));
        for preset in EgressPreset::ALL {
            assert_eq!(EgressPreset::by_name(preset.name), Some(*preset));
            assert!(preset.hosts().all(|host| is_name(&host) && preset.names(&host)), "{preset:?}");
        }
        assert_eq!(EgressPreset::by_name("gitlab").unwrap().hosts().collect::<Vec<_>>(), ["gitlab.com"]);
        assert_eq!(EgressPreset::by_name("unknown"), None);
    }
}
