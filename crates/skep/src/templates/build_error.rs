//! Why a build failed. Tenants read it in records and events, so it names no path, console output or program of the server;
//! the log does.

use std::fmt;

use crate::bake_process::BakeFailed;

/// The reasons that callers get. Each has an exit code of `skep bake-template`, which runs in a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuildError {
    DiskFull,
    /// The guest did not boot, or its VMM failed.
    Guest,
    Interrupted,
    /// Files that it begins with do not match their checksums.
    Damaged,
    /// The server has no memory or disk space for the guest.
    NoCapacity,
    /// The parent does not exist any more.
    NoParent,
    Internal,
}

/// The reasons with an exit code. Those of other failures of the verb are below 3.
const CODES: [(BuildError, u8); 4] = [
    (BuildError::DiskFull, 40),
    (BuildError::Guest, 41),
    (BuildError::Interrupted, 42),
    (BuildError::Damaged, 43),
];

impl BuildError {
    /// The reason of a failed bake in this process.
    pub(crate) fn of_bake(error: &anyhow::Error) -> Self {
        match error.downcast_ref::<skep_image::Error>() {
            Some(skep_image::Error::DiskFull { .. }) => Self::DiskFull,
            Some(
                skep_image::Error::Guest { .. }
                | skep_image::Error::Engine(_)
                | skep_image::Error::Vmm { .. },
            ) => Self::Guest,
            Some(skep_image::Error::Interrupted(_)) => Self::Interrupted,
            Some(skep_image::Error::Template(
                skep_template::Error::Damaged { .. } | skep_template::Error::Missing(_),
            )) => Self::Damaged,
            _ => Self::Internal,
        }
    }

    /// The reason of a failed bake in a process of its own.
    pub(super) fn of_process(error: &anyhow::Error) -> Self {
        let code = error.downcast_ref::<BakeFailed>().and_then(|failed| failed.status.code());
        let known = CODES.into_iter().find(|(_, known)| code == Some(i32::from(*known)));
        known.map_or(Self::Internal, |(reason, _)| reason)
    }

    pub(crate) fn exit_code(self) -> u8 {
        CODES.into_iter().find(|(reason, _)| *reason == self).map_or(1, |(_, code)| code)
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DiskFull => "the disk of the server is full",
            Self::Guest => "its guest did not boot",
            Self::Interrupted => "the build was stopped",
            Self::Damaged => "the files that it begins with are damaged",
            Self::NoCapacity => "the server has no memory or disk space for it now",
            Self::NoParent => "the template that it begins with does not exist",
            Self::Internal => "the server could not do it; its log has the reason",
        })
    }
}

/// Why a template on disk cannot be used, for callers.
pub(super) fn public_reason(error: &skep_image::Error) -> String {
    match error {
        skep_image::Error::Template(
            skep_template::Error::Damaged { reason, .. } | skep_template::Error::Outdated { reason, .. },
        ) => reason.clone(),
        skep_image::Error::TemplateProtocol { source, .. } => source.to_string(),
        _ => "the server could not check it; its log has the reason".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::{io, os::unix::process::ExitStatusExt, process::ExitStatus};

    use super::*;

    const DIR: &str = "/var/lib/skep/templates/tpl_1/0123";
    const CONSOLE: &str = "Kernel panic - not syncing: secret";

    fn errors() -> [skep_image::Error; 7] {
        let dir = || DIR.into();
        let text = || format!("{DIR}: {CONSOLE}");
        [
            skep_image::Error::DiskFull { dir: dir(), cause: text() },
            skep_image::Error::Guest { what: "boot", cause: text(), console: CONSOLE.to_owned() },
            skep_image::Error::Failed { command: text(), status: "1".to_owned(), message: text() },
            skep_image::Error::Baking(dir()),
            skep_image::Error::Template(skep_template::Error::Missing(dir())),
            skep_image::Error::Template(skep_template::Error::Damaged {
                dir: dir(),
                reason: "layer.ext4: it has 1 bytes, and had 2 when it was checked".to_owned(),
            }),
            skep_image::Error::Io { what: text(), source: io::ErrorKind::NotFound.into() },
        ]
    }

    #[test]
    fn no_path_console_or_command_of_the_server_reaches_a_caller() {
        for error in errors() {
            assert!(error.to_string().contains("/var"), "control: {error}");
            let reason = public_reason(&error);
            let failed = BuildError::of_bake(&error.into()).to_string();
            for text in [reason, failed] {
                for secret in ["/", "panic", "skep bake"] {
                    assert!(!text.contains(secret), "{secret}: {text}");
                }
            }
        }
        for step in skep_image::BUILD_STEPS {
            assert!(!step.contains('/'), "{step}");
        }
    }

    #[test]
    fn a_reason_passes_the_process_of_its_bake() {
        let exited = |code: u8| {
            let status = ExitStatus::from_raw(i32::from(code) << 8);
            BuildError::of_process(&BakeFailed { status, last_line: DIR.to_owned() }.into())
        };
        for (reason, _) in CODES.into_iter().chain([(BuildError::Internal, 1)]) {
            assert_eq!(exited(reason.exit_code()), reason);
        }
        let killed = BakeFailed { status: ExitStatus::from_raw(9), last_line: String::new() };
        assert_eq!(BuildError::of_process(&killed.into()), BuildError::Internal);
        assert_eq!(BuildError::of_process(&anyhow::anyhow!("not started")), BuildError::Internal);
    }
}
