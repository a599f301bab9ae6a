//! `POST /api/admin/restart`.

use skep_api::admin::{RestartServer, Restarting};

use super::{
    Routes,
    handle::{Handle, Request, endpoints},
};
use crate::{error::Refusal, restart::Restart};

pub(crate) fn routes(restart: &Restart) -> Routes {
    endpoints![restart; RestartServer]
}

impl Handle<Restart> for RestartServer {
    async fn handle(self, restart: Restart, _: Request<()>) -> Result<Restarting, Refusal> {
        restart().await?;
        Ok(Restarting { restarting: true })
    }
}
