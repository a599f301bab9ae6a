//! `skep bake-template`: builds a template from the disk of another one, started by the keeper.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use indicatif::ProgressBar;
use skep_api::TemplateId;
use skep_image::{Bakery, Origin};

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
    #[command(flatten)]
    settings: Settings,
}

pub(crate) fn run(verb: BakeTemplate) -> anyhow::Result<ExitCode> {
    let BakeTemplate { id, shelf, parent, settings } = verb;
    let bar = ProgressBar::new_spinner();
    let bakery = bake::bakery(&settings.resolved()?, bake::progress(&bar))?;
    let baked = bake::bake(&Bakery { origin: Origin::Parent { id, shelf, parent }, ..bakery }, &bar);
    Ok(baked.unwrap_or_else(|error| {
        output::report_error(&error);
        ExitCode::from(BuildError::of_bake(&error).exit_code())
    }))
}
