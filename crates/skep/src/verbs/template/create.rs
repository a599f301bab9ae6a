//! `skep template create`: begins the build of a template and waits for its end.

use std::{process::ExitCode, time::Duration};

use anyhow::bail;
use clap::Args;
use skep_api::templates::{CreateTemplate, Template, TemplateName, TemplateState};
use skep_client::{Answered, Client};
use tokio::time::sleep;

use super::show::table;
use crate::{connection::Connection, output};

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Create a template with the disk of another one and a size of its own.
#[derive(Debug, Args)]
pub(super) struct Create {
    /// Name of the new template: a-z, 0-9 and `-`.
    name: TemplateName,
    /// Name or id of the template whose disk the new one begins with.
    #[arg(long, value_name = "TEMPLATE", default_value = "base")]
    from: String,
    /// Memory of a VM, such as 512M or 4G [default: as in --from].
    #[arg(long, value_name = "SIZE", value_parser = parse_mebibytes)]
    memory: Option<u64>,
    /// Virtual processors of a VM [default: as in --from].
    #[arg(long, value_name = "NUMBER")]
    vcpus: Option<u32>,
    /// Size of a VM's disk, such as 20G; not less than in --from [default: as in --from].
    #[arg(long, value_name = "SIZE", value_parser = parse_mebibytes)]
    disk: Option<u64>,
    /// Description, one line.
    #[arg(short, long, value_name = "TEXT")]
    description: Option<String>,
    /// Wait until the template is ready or could not be built. This is the default.
    #[arg(long, conflicts_with = "no_wait")]
    wait: bool,
    /// Return as soon as the build has begun.
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn create(verb: Create) -> anyhow::Result<ExitCode> {
    let client = verb.connection.client()?;
    let request = CreateTemplate {
        name: verb.name,
        from: verb.from,
        memory_mb: verb.memory,
        vcpus: verb.vcpus,
        disk_mb: verb.disk,
        description: verb.description,
    };
    let begun = client.create_template(&request).await?;
    let ended = if verb.no_wait { begun } else { wait(&client, begun).await? };
    if verb.connection.json {
        output::json(&ended.text)?;
    } else {
        table(std::slice::from_ref(&ended.value))?;
    }
    if ended.state == TemplateState::Failed {
        let reason = ended.error.as_deref().unwrap_or("the reason is not known");
        bail!(
            "the template `{0}` could not be built: {reason}; `skep template rm {0}` removes it",
            ended.name
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until the template is not being built any more. On a terminal, shows the progress.
async fn wait(client: &Client, begun: Answered<Template>) -> anyhow::Result<Answered<Template>> {
    let (id, name, bar) = (begun.id.to_string(), begun.name.clone(), output::spinner());
    let mut seen = begun;
    while seen.state == TemplateState::Building {
        let step = seen.progress.as_deref().map(|step| format!(": {step}")).unwrap_or_default();
        bar.set_message(output::visible(&format!("building `{name}`{step}")));
        sleep(POLL_INTERVAL).await;
        seen = client.template(&id).await?;
    }
    bar.finish_and_clear();
    Ok(seen)
}

/// Parses a size in MiB: a number with the unit `M` or `G`.
fn parse_mebibytes(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.as_bytes().last() {
        Some(b'M' | b'm') => (&text[..text.len() - 1], 1),
        Some(b'G' | b'g') => (&text[..text.len() - 1], 1024),
        _ => ("", 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    number.ok_or_else(|| "give a whole number and a unit, such as 512M or 4G".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_a_unit() {
        for (text, expected) in [("512M", 512), ("4G", 4096), ("20g", 20_480), ("0m", 0)] {
            assert_eq!(parse_mebibytes(text), Ok(expected), "{text}");
        }
        for wrong in
            ["", "4", "G", "-1G", "4.5G", "4T", "4GB", "ä", "99999999999999999999G", "18446744073709551615G"]
        {
            assert!(parse_mebibytes(wrong).unwrap_err().contains("512M"), "{wrong}");
        }
    }
}
