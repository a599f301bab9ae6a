//! Administration of the server process.

use serde::{Deserialize, Serialize};

use crate::{
    ErrorCode::{RestartRefused, ShuttingDown},
    Scope,
    endpoint::{Access, Body, Endpoint, Method, Route, Success},
};

/// Restarts the server: `POST /api/admin/restart`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RestartServer {}

impl Endpoint for RestartServer {
    const ROUTE: Route = Route {
        tag: "server",
        summary: "Restart the server",
        description: "Reads the settings again and starts a new server process with them. Once the new one is ready it \
                      takes over, and the old one exits after it has answered its open requests. No connection is refused \
                      meanwhile, and VMs keep running; a call about VMs may wait until the old process is gone. Settings \
                      that cannot start a server, or that need a stop and a start (the listen address, the data directory, \
                      the user, the resources of VMs), are refused with 409, and this server keeps running. `uptime` \
                      starts again. A request during another restart joins it: it gets the same outcome, and the settings \
                      are not read again. Commands on the server that run for more than 30 more seconds end with the old \
                      process; commands in VMs keep running.",
        answer_example: r#"{"restarting": true}"#,
        refusals: &[&[RestartRefused, ShuttingDown]],
        success: Success::Accepted("The new server has taken over"),
        body: Body::Empty,
        ..Route::new(Method::Post, "/api/admin/restart", "restart", Access::AccountKey(&[Scope::ServerAdmin]))
    };
    type Path = ();
    type Answer = Restarting;
}

/// The answer of `POST /api/admin/restart`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Restarting {
    /// Always true. If the restart is not possible, the answer is an error.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub restarting: bool,
}
