//! Variable segments of paths.

use axum::extract::{FromRequestParts, Path, rejection::PathRejection};
use http::request::Parts;
use serde::de::DeserializeOwned;
use skep_api::{ErrorCode, Failure, VmRef};

use crate::error::Refusal;

/// The OpenAPI description of a VM reference in a path or a query.
pub(crate) const VM_REFERENCE: &str =
    "The VM: its process id, id, unique beginning of the id (`vm_01jv`), name, host name or address";

/// The VM reference in a path. Its existence is checked last.
#[derive(Debug)]
pub(crate) struct VmPath(Segment);

impl VmPath {
    /// The VM that it may be.
    ///
    /// # Errors
    /// `unknown_vm` where no VM can have such a name.
    pub(crate) fn vm(&self) -> Result<VmRef, Failure> {
        parse_vm(&self.0.0)
    }
}

/// Parses a VM reference.
///
/// # Errors
/// `unknown_vm` where no VM can have such a name.
pub(crate) fn parse_vm(text: &str) -> Result<VmRef, Failure> {
    VmRef::parse(text).ok_or_else(|| Failure::unknown_vm(text))
}

impl<S: Send + Sync> FromRequestParts<S> for VmPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        Segment::from_request_parts(parts, state).await.map(Self)
    }
}

/// The VM and the command in a path.
#[derive(Debug)]
pub(crate) struct ExecPath {
    vm: String,
    exec_id: String,
}

impl ExecPath {
    /// The VM that it may be.
    ///
    /// # Errors
    /// `unknown_vm` where no VM can have such a name.
    pub(crate) fn vm(&self) -> Result<VmRef, Failure> {
        parse_vm(&self.vm)
    }

    /// The command's id. Its characters are checked, because it becomes part of a request to the guest.
    ///
    /// # Errors
    /// `unknown_exec` where no command can have such an id.
    pub(crate) fn exec_id(&self) -> Result<&str, Failure> {
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if (1..=64).contains(&self.exec_id.len()) && self.exec_id.bytes().all(fits) {
            return Ok(&self.exec_id);
        }
        let message = format!(
            "there is no command {:?}; an id is what the header `Skep-Exec-Id` of a stream named",
            self.exec_id
        );
        Err(Failure::new(ErrorCode::UnknownExec, message))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ExecPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let (vm, exec_id) = segments(parts).await?;
        Ok(Self { vm, exec_id })
    }
}

/// The only variable segment of a path.
#[derive(Debug)]
pub(crate) struct Segment(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        segments(parts).await.map(Self)
    }
}

/// All variable segments of a path.
#[derive(Debug)]
pub(crate) struct Segments(pub Vec<String>);

impl<S: Send + Sync> FromRequestParts<S> for Segments {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        segments(parts).await.map(Self)
    }
}

/// The variable segments of a path; `T` determines their number.
async fn segments<T: DeserializeOwned + Send>(parts: &mut Parts) -> Result<T, Refusal> {
    match Path::<T>::from_request_parts(parts, &()).await {
        Ok(Path(segments)) => Ok(segments),
        Err(PathRejection::FailedToDeserializePathParams(_)) => Err(not_utf8().into()),
        Err(other) => Err(Refusal::internal(other.to_string())),
    }
}

/// The refusal of a path whose decoded bytes are not UTF-8.
pub(crate) fn not_utf8() -> Failure {
    Failure::new(
        ErrorCode::MalformedRequest,
        "the path is not UTF-8 once its %xx are decoded; encode it as UTF-8",
    )
}
