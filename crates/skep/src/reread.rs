//! The settings as they are now, for a server that takes the place of the one that serves.

use std::{ffi::OsString, sync::Arc};

use skep_api::HelperKind;
use skep_keeper::{Configured, PairFiles, Reread};

use crate::{
    cli::{Cli, Verb},
    helper_process, output,
    settings::{self, Settings, TlsSource},
    verbs::serve,
};

/// What a server is started with by these settings.
///
/// # Errors
/// The certificate's files cannot be read.
pub(crate) fn configured(settings: &Settings) -> anyhow::Result<Configured> {
    let tls = match settings.transport.tls_source()? {
        TlsSource::Files { certificate, key } => Some(Arc::new(PairFiles::open(certificate, key)?)),
        TlsSource::PlainText | TlsSource::SelfSigned => None,
    };
    let commands_helper = helper_process::order(settings, HelperKind::Commands);
    let git_helper = helper_process::order(settings, HelperKind::Git);
    Ok(Configured { settings: serde_json::to_value(settings)?, tls, commands_helper, git_helper })
}

/// Reads them again where this process was told to find them.
pub(crate) fn reread(before: Settings) -> Reread {
    Arc::new(move || {
        let settings = read_again().map_err(|error| output::one_line(&error))?;
        if let Some(why) = takes_more(&before, &settings) {
            return Err(why);
        }
        configured(&settings).map_err(|error| output::one_line(&error))
    })
}

/// The settings that a server would start with now.
///
/// # Errors
/// It would not; the message says why.
pub(crate) fn read_again() -> anyhow::Result<Settings> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let Cli { verb: Verb::Serve(verb) } = settings::try_parse::<Cli>(&arguments)? else {
        anyhow::bail!("this process was not started by `skep serve`");
    };
    let settings = verb.settings.resolved()?;
    match serve::check(&settings).into_iter().next() {
        Some((name, error)) => Err(error.context(format!("`{name}`"))),
        None => Ok(settings),
    }
}

/// What the keeper itself was started with, and what it holds: a restart of the server does not change it.
pub(crate) fn takes_more(before: &Settings, now: &Settings) -> Option<String> {
    let shown = |settings: &Settings| -> [(&'static str, String); 7] {
        [
            ("listen", settings.listen.to_string()),
            ("metrics_listen", format!("{:?}", settings.metrics_listen)),
            ("data_dir", settings.data_dir.display().to_string()),
            ("image_dir", settings.image_dir().display().to_string()),
            ("user", format!("{:?}", settings.user)),
            ("max_vms", format!("{:?}", settings.max_vms)),
            ("memory_mb", format!("{:?}", settings.memory_mb)),
        ]
    };
    let changed = shown(before).into_iter().zip(shown(now)).find(|(before, now)| before != now);
    changed.map(|((name, before), (_, now))| {
        format!("`{name}` changed from {before} to {now}, which takes a stop and a start of `skep serve`")
    })
}
