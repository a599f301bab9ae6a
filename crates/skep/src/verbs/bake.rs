//! `skep bake`: builds the base template.

use std::{io, process::ExitCode, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{getpid, set_child_subreaper};
use skep_image::{AGENT, Origin, Progress, TemplateBuilder};

use super::serve;
use crate::{output, settings::Settings};

const EXIT_CODES: &str = "Exit codes: 0 the template is complete; 1 the build failed; 2 the command line is wrong; 128 and the number of the signal that ended it.";

/// Build the base template.
///
/// Nothing is built if a complete one for this machine's kernel, QEMU and packages exists.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct Bake {
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(verb: Bake) -> anyhow::Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        bail!("a bake boots a VM in a jail, which needs root; run `sudo skep bake`");
    }
    let settings = verb.settings.resolved()?;
    if let Some((_, error)) = serve::check(&settings).into_iter().next() {
        return Err(error);
    }
    let bar = ProgressBar::new_spinner();
    bake(&template_builder(&settings, progress(&bar))?, &bar)
}

/// Bakes, and prints the folder of the template.
pub(super) fn bake(template_builder: &TemplateBuilder, bar: &ProgressBar) -> anyhow::Result<ExitCode> {
    // The VMMs outlive their parent, the stage. Without this, a keeper that started the bake would inherit them and not
    // reap them.
    set_child_subreaper(Some(getpid())).context("the bake cannot wait for its processes")?;
    let done = template_builder.load();
    bar.finish_and_clear();
    output::line(&done?.dir().display().to_string())?;
    Ok(ExitCode::SUCCESS)
}

/// The template builder for these settings.
pub(super) fn template_builder(settings: &Settings, progress: Progress) -> anyhow::Result<TemplateBuilder> {
    Ok(TemplateBuilder {
        origin: Origin::Packages,
        image_dir: settings.image_dir(),
        agent: AGENT.context(
            "this binary was built without the guest agent; build it by `make run` or `make build`",
        )?,
        engine: skep_engine::select()?.into(),
        size: settings.base.guest(),
        binary: "/proc/self/exe".into(),
        progress,
    })
}

/// Reports each step: as a line, and on a terminal also with a spinner.
pub(super) fn progress(bar: &ProgressBar) -> Progress {
    if !rustix::termios::isatty(io::stderr()) {
        return Arc::new(|step| output::eprint_line(&format!("bake: {step}")));
    }
    bar.set_style(ProgressStyle::default_spinner());
    bar.enable_steady_tick(Duration::from_millis(120));
    let bar = bar.clone();
    Arc::new(move |step| {
        bar.println(format!("bake: {step}"));
        bar.set_message(step.to_owned());
    })
}
