//! `GET /api/whoami`.

use skep_api::keys::{WhoAmI, WhoAmIAccount, WhoAmIKey};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{Answer, Routes};
use crate::{
    extract::{AnyKeyOrVmKey, Caller, NoParameters, Query},
    json::Json,
};

pub(crate) fn routes() -> Routes {
    vec![routes!(whoami).with_state(())]
}

/// Identify the caller
///
/// For any key: returns its record, its account, its scopes and its limits.
#[utoipa::path(
    get, path = "/api/whoami", tag = "keys", operation_id = "whoami", security(("bearer" = [])),
    responses((status = 200, description = "The key, its account and its limits", body = WhoAmI, example = json!({
        "key": {"id": "key_01jv0000000000000000000000", "prefix": "sk-skep-prod-3f9a1c20", "name": "ci"},
        "account": {"id": "acc_01jv0000000000000000000000", "name": "default"},
        "scopes": ["swarm:read", "swarm:exec"], "roots": ["/var/lib/skep/workspaces/default"],
        "limits": {"max_vms": null, "max_memory_mb": null, "max_paused_vms": null, "max_disk_mb": null}, "vm": null
    })))
)]
async fn whoami(caller: Caller<AnyKeyOrVmKey>, _: Query<NoParameters>) -> Answer<WhoAmI> {
    let (key, account) = (&caller.key, &caller.account);
    Ok(Json(WhoAmI {
        key: WhoAmIKey { id: key.id, prefix: key.prefix.clone(), name: key.name.clone() },
        account: WhoAmIAccount { id: account.id, name: account.name.clone() },
        scopes: key.scopes.clone(),
        roots: account.roots.clone(),
        limits: account.limits,
        vm: key.vm,
    }))
}
