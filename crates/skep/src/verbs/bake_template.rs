//! `skep bake-template`: builds a template from the disk of another one, started by the keeper.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use indicatif::ProgressBar;
use skep_api::TemplateId;
use skep_image::{Origin, TemplateBuilder};

use super::bake;
use crate::{output, settings::Settings, templates::BuildError};

#[derive(Debug, Args)]
pub(crate) struct BakeTemplate {
    /// The id of the new template.
    #[arg(long)]
    id: TemplateId,
    /// The folder in which it gets its own.
    #[arg(long, value_name = "DIR")]
    shelf: PathBuf,
    /// The folder with the files of its parent.
    #[arg(long, value_name = "DIR")]
    parent: PathBuf,
    /// The folder with its kernel and initial ramdisk [default: those of the parent].
    #[arg(long, value_name = "DIR")]
    system: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(verb: BakeTemplate) -> anyhow::Result<ExitCode> {
    let BakeTemplate { id, shelf, parent, system, settings } = verb;
    let bar = ProgressBar::new_spinner();
    let template_builder = bake::template_builder(&settings.resolved()?, bake::progress(&bar))?;
    let origin = Origin::Parent { id, shelf, parent, system };
    let baked = bake::bake(&TemplateBuilder { origin, ..template_builder }, &bar);
    Ok(baked.unwrap_or_else(|error| {
        output::report_error(&error);
        ExitCode::from(BuildError::of_bake(&error).exit_code())
    }))
}
