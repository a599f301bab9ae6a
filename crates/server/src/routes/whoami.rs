//! `GET /api/whoami`.

use skep_api::keys::{IdentifyCaller, WhoAmI, WhoAmIAccount, WhoAmIKey};

use super::{
    Routes,
    handle::{Handle, Request, endpoints},
};
use crate::error::Refusal;

pub(crate) fn routes() -> Routes {
    endpoints![(); IdentifyCaller]
}

impl Handle<()> for IdentifyCaller {
    async fn handle(self, (): (), request: Request<()>) -> Result<WhoAmI, Refusal> {
        let (key, account) = (&request.caller.key, &request.caller.account);
        Ok(WhoAmI {
            key: WhoAmIKey { id: key.id, prefix: key.prefix.clone(), name: key.name.clone() },
            account: WhoAmIAccount { id: account.id, name: account.name.clone() },
            scopes: key.scopes.clone(),
            roots: account.roots.clone(),
            limits: account.limits,
            vm: key.vm,
        })
    }
}
