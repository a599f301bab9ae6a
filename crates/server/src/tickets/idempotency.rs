//! The header `Idempotency-Key`, which lets a caller repeat a request without repeating its effect.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::{HeaderMap, HeaderName};
use skep_api::{AccountId, ErrorCode, Failure};
use skep_store::IdempotentRequest;

use crate::body::Object;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// The description of the header in the OpenAPI document.
pub(crate) const IDEMPOTENCY_KEY_DESCRIPTION: &str = "A unique key of this request, 1 to 255 characters: for 24 hours, repeating it has no effect and gets the same answer";
/// The longest key, in bytes.
const MAX_KEY_BYTES: usize = 255;

/// The idempotency key of a request, if it has one.
///
/// # Errors
/// `malformed_request` if the key is empty, too long, not printable ASCII or given twice.
pub(crate) fn idempotency_key(
    headers: &HeaderMap,
    path: &'static str,
    body: &Object,
) -> Result<Option<IdempotentRequest>, Failure> {
    let mut values = headers.get_all(&IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| (1..=MAX_KEY_BYTES).contains(&text.len()));
    match (text, values.next()) {
        (Some(text), None) => {
            Ok(Some(IdempotentRequest { path, key: text.to_owned(), body_hash: body.fingerprint() }))
        }
        _ => {
            let message = format!(
                "`Idempotency-Key` must be given once, with 1 to {MAX_KEY_BYTES} printable ASCII characters"
            );
            Err(Failure::new(ErrorCode::MalformedRequest, message))
        }
    }
}

type RequestKey = (AccountId, &'static str, String);

/// The requests with an idempotency key that are in progress.
#[derive(Debug, Clone, Default)]
pub(crate) struct InProgressRequests(Arc<Mutex<HashSet<RequestKey>>>);

/// Marks a request as in progress until it is dropped.
#[derive(Debug)]
pub(crate) struct InProgressGuard {
    all: InProgressRequests,
    key: Option<RequestKey>,
}

impl InProgressRequests {
    /// Marks a request as in progress.
    ///
    /// # Errors
    /// `idempotency_in_progress` while a request with the same key is in progress.
    pub(crate) fn begin(
        &self,
        account: AccountId,
        once: Option<&IdempotentRequest>,
    ) -> Result<InProgressGuard, Failure> {
        let name = once.map(|once| (account, once.path, once.key.clone()));
        if let Some(name) = &name
            && !self.lock().insert(name.clone())
        {
            let message = format!(
                "a request with the `Idempotency-Key` `{}` is in progress; wait for its answer, or try again later",
                name.2
            );
            return Err(Failure::new(ErrorCode::IdempotencyInProgress, message));
        }
        Ok(InProgressGuard { all: self.clone(), key: name })
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<RequestKey>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InProgressGuard {
    fn drop(&mut self) {
        if let Some(name) = &self.key {
            self.all.lock().remove(name);
        }
    }
}
