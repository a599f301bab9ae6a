//! `Idempotency-Key`: what a caller names a request, so that it has its effect once.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use http::{HeaderMap, HeaderName};
use skep_api::{AccountId, ErrorCode, Failure};
use skep_store::Once;

use crate::body::Object;

/// The header.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// What the header means, for the document of the API.
pub(crate) const NAMED_ONCE: &str =
    "A name for this request, 1 to 255 characters: it has its effect once, and answers the same for 24 hours";
/// The longest name of a request.
const LONGEST: usize = 255;

/// What a request is named, if it is.
///
/// # Errors
/// `malformed_request` where it is no name.
pub(crate) fn named_once(
    headers: &HeaderMap,
    path: &'static str,
    body: &Object,
) -> Result<Option<Once>, Failure> {
    let mut values = headers.get_all(&IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| (1..=LONGEST).contains(&text.len()));
    match (text, values.next()) {
        (Some(text), None) => Ok(Some(Once { path, key: text.to_owned(), body: body.fingerprint() })),
        _ => {
            let message = format!(
                "`Idempotency-Key` must stand once, with 1 to {LONGEST} printable characters of ASCII"
            );
            Err(Failure::new(ErrorCode::MalformedRequest, message))
        }
    }
}

type Name = (AccountId, &'static str, String);

/// The named requests that are under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnderWay(Arc<Mutex<HashSet<Name>>>);

/// One of them, until it is dropped.
#[derive(Debug)]
pub(crate) struct Begun {
    all: UnderWay,
    name: Option<Name>,
}

impl UnderWay {
    /// Begins a request.
    ///
    /// # Errors
    /// `idempotency_in_progress` while one of the same name is under way.
    pub(crate) fn begin(&self, account: AccountId, once: Option<&Once>) -> Result<Begun, Failure> {
        let name = once.map(|once| (account, once.path, once.key.clone()));
        if let Some(name) = &name
            && !self.lock().insert(name.clone())
        {
            let message = format!(
                "a request with the `Idempotency-Key` `{}` is under way; wait for its answer, or ask again later",
                name.2
            );
            return Err(Failure::new(ErrorCode::IdempotencyInProgress, message));
        }
        Ok(Begun { all: self.clone(), name })
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Name>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            self.all.lock().remove(name);
        }
    }
}
