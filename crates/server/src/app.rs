//! The router, put together from its routes and the layers around them.

use std::{
    any::Any,
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Instant,
};

use axum::{
    Router,
    extract::{Request, State},
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
};
use skep_api::{ErrorCode, Failure};
use skep_store::Store;
use skep_swarm::Swarm;
use tokio::sync::watch;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::router::OpenApiRouter;

use crate::{
    auth::{Gate, guard},
    error::{Refusal, UNKNOWN_ROUTE},
    extract::not_utf8,
    key_uses::KeyUses,
    metrics::{Metrics, Readings},
    openapi,
    request::observe,
    routes::{
        Routes,
        boot::BootDefaults,
        exec::{self, ExecDesk},
        health::{self, Vitals},
        keys::{self, KeyDesk},
        metrics, openapi as document,
        swarm::{self, SwarmDesk},
        whoami,
    },
    vms::Vms,
};

/// What the routes stand on.
#[derive(Clone)]
pub struct Parts {
    /// Accounts, keys, VMs and events.
    pub store: Arc<dyn Store>,
    /// The swarm, or why there is none.
    pub swarm: Result<Swarm, String>,
    /// Where the server writes; health looks at its disk.
    pub data_dir: PathBuf,
    /// What a boot gets that names nothing else.
    pub boot: BootDefaults,
    /// Uses of keys, to be written together.
    pub uses: KeyUses,
    /// What is counted.
    pub metrics: Metrics,
    /// True when those who are still there are about to be cut off.
    pub closing: watch::Receiver<bool>,
}

/// The whole service as one router, which needs the caller's address as `ConnectInfo<SocketAddr>`.
///
/// # Errors
/// A fault of ours where the OpenAPI document cannot be written.
pub fn router(parts: Parts) -> Result<Router, Failure> {
    let Parts { store, swarm, data_dir, boot, uses, metrics: counted, closing } = parts;
    let vms = Vms::new(swarm);
    let text = document::Document::new(OnceLock::new());
    let readings = Readings {
        metrics: counted.clone(),
        store: Arc::clone(&store),
        vms: vms.clone(),
        data_dir: data_dir.clone(),
    };
    let vitals = Vitals { store: Arc::clone(&store), vms: vms.clone(), data_dir, started: Instant::now() };
    let public = [health::routes(vitals), document::routes(Arc::clone(&text))];
    let guarded = [
        whoami::routes(),
        metrics::routes(readings),
        keys::routes(KeyDesk { store: Arc::clone(&store), vms: vms.clone() }),
        swarm::routes(SwarmDesk { vms: vms.clone(), defaults: boot }),
        exec::routes(ExecDesk { vms, store: Arc::clone(&store), closing }),
    ];
    let gate = Gate::new(store, uses);
    let guarded = described(guarded).layer(from_fn_with_state(gate.clone(), guard));
    let whole = OpenApiRouter::with_openapi(openapi::beginning()).merge(described(public)).merge(guarded);
    let (router, mut description) = whole.split_for_parts();
    openapi::complete(&mut description);
    // The first and only filling.
    let _ = text.set(openapi::text(&description)?.into());
    let outside = Router::new().fallback(unknown).with_state(gate);
    Ok(router
        .fallback_service(outside)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(counted, observe)))
}

/// Routes have no other way in than with their descriptions.
fn described(subjects: impl IntoIterator<Item = Routes>) -> OpenApiRouter {
    subjects.into_iter().flatten().fold(OpenApiRouter::default(), OpenApiRouter::routes)
}

/// Whatever no route matches. Below /api the key comes first: strangers learn nothing, not even what is not there.
async fn unknown(State(gate): State<Gate>, request: Request) -> Refusal {
    let path = request.uri().path();
    if (path == "/api" || path.starts_with("/api/"))
        && let Err(refusal) = gate.admit(request.headers(), request.extensions()).await
    {
        return refusal;
    }
    if percent_decoded(path).is_err() {
        return not_utf8().into();
    }
    Refusal::new(ErrorCode::UnknownRoute, UNKNOWN_ROUTE)
}

fn percent_decoded(path: &str) -> Result<String, std::string::FromUtf8Error> {
    let digit = |byte: Option<&u8>| byte.and_then(|b| char::from(*b).to_digit(16));
    let bytes = path.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(bytes.get(at + 1)), digit(bytes.get(at + 2))) {
            #[expect(clippy::cast_possible_truncation, reason = "two hex digits are one byte")]
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8(decoded)
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no words");
    Refusal::internal(format!("panic: {text}")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_is_no_text_is_noticed() {
        assert_eq!(percent_decoded("/a%20%C3%A9").as_deref(), Ok("/a é"));
        assert_eq!(percent_decoded("/100%").as_deref(), Ok("/100%"));
        assert!(percent_decoded("/%ff").is_err());
    }
}
