//! Prints the OpenAPI document. The build makes the types of the dashboard from it before there is a `skep`, which embeds
//! the dashboard.

use std::io::{Write, stdout};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    stdout().write_all(&skep_openapi::document().await?)?;
    Ok(())
}
