//! Reads an operation and its target from a request: the query of a GET or DELETE, the body of a POST.

use axum::extract::{FromRequest, FromRequestParts, Request};
use form_urlencoded::Serializer;
use http::{HeaderMap, request::Parts};
use serde_json::{Map, Value};
use skep_api::{
    ErrorCode, Failure, WorkspaceEndpoint,
    exec::VmField,
    files::WriteCondition,
    path::{PathEncoding, percent_encoded},
};

use crate::{
    body::{BodyLimit, Object, read_object},
    error::Refusal,
    extract::{NoParameters, Query, RequestInfo, read_query},
    operation_runner::{OperationRunner, Target},
};

/// The parameter that names a VM.
const VM: &str = "vm";
/// The parameter that names the encoding of paths.
const PATH_ENCODING: &str = "path_encoding";

/// An operation, where it runs, and its precondition.
#[derive(Debug)]
pub(crate) struct OperationRequest<O> {
    pub operation: O,
    pub target: Target,
    pub condition: WriteCondition,
}

impl<O: WorkspaceEndpoint + 'static, S: Send + Sync> FromRequest<S> for OperationRequest<O> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let (mut parts, body) = request.into_parts();
        let call = RequestInfo::from_request_parts(&mut parts, state).await?;
        let condition =
            if O::ROUTE.conditional { precondition(&parts.headers)? } else { WriteCondition::None };
        let (operation, vm) = if O::ROUTE.method.has_body() {
            Query::<NoParameters>::from_request_parts(&mut parts, state).await?;
            read_object(Request::from_parts(parts, body), BodyLimit::of_route(&O::ROUTE), from_body::<O>)
                .await?
        } else {
            from_query::<O>(&parts)?
        };
        let target = Target::from_field(vm.as_ref())?;
        if !matches!(O::ROUTE.method, skep_api::endpoint::Method::Get) {
            OperationRunner::record_resource(&target, &call.audit);
        }
        Ok(Self { operation, target, condition })
    }
}

/// The operation in a body, and the VM. A field that is null counts as absent.
fn from_body<O: WorkspaceEndpoint>(object: Object) -> Result<(O, Option<VmField>), Failure> {
    let mut fields = object.into_fields();
    fields.retain(|_, value| !value.is_null());
    let vm = fields.remove(VM).map(|vm| Object::single(VM, vm).into_field::<VmField>(VM)).transpose()?;
    decode_paths::<O>(&mut fields)?;
    let operation: O = Object::from_fields(fields).into_request()?;
    operation.check()?;
    Ok((operation, vm))
}

/// The operation in a query, and the VM.
fn from_query<O: WorkspaceEndpoint>(parts: &Parts) -> Result<(O, Option<VmField>), Failure> {
    let query = parts.uri.query().unwrap_or_default();
    let pairs = crate::extract::query_pairs(query)?;
    let (mut common, mut rest) = (Map::new(), Vec::new());
    for (name, value) in pairs {
        let is_common = name == VM || O::ROUTE.paths.contains(&&*name) || is_path_encoding::<O>(&name);
        match is_common {
            true if common.contains_key(&*name) => {
                let message = format!("`{name}` is given twice; give it once");
                return Err(Failure::new(ErrorCode::InvalidValue, message));
            }
            true => drop(common.insert(name.into_owned(), Value::String(value.into_owned()))),
            false => rest.push((name, value)),
        }
    }
    let text = |value: Value| if let Value::String(text) = value { text } else { value.to_string() };
    let vm = common.remove(VM).map(|vm| VmField::Text(text(vm)));
    decode_paths::<O>(&mut common)?;
    let mut query = Serializer::new(String::new());
    query.extend_pairs(common.into_iter().map(|(name, value)| (name, text(value))));
    query.extend_pairs(rest);
    let operation: O = read_query(&query.finish())?;
    operation.check()?;
    Ok((operation, vm))
}

fn is_path_encoding<O: WorkspaceEndpoint>(name: &str) -> bool {
    name == PATH_ENCODING && !O::ROUTE.paths.is_empty()
}

/// Removes `path_encoding`, and percent-encodes paths that are written plainly: the value of an operation has all paths
/// percent-encoded.
fn decode_paths<O: WorkspaceEndpoint>(fields: &mut Map<String, Value>) -> Result<(), Failure> {
    if O::ROUTE.paths.is_empty() {
        return Ok(());
    }
    let encoding = fields
        .remove(PATH_ENCODING)
        .map(|encoding| Object::single(PATH_ENCODING, encoding).into_field::<PathEncoding>(PATH_ENCODING))
        .transpose()?
        .unwrap_or_default();
    if encoding == PathEncoding::Percent {
        return Ok(());
    }
    for name in O::path_fields(fields) {
        if let Some(Value::String(path)) = fields.get_mut(*name) {
            *path = percent_encoded(path.as_ref());
        }
    }
    Ok(())
}

/// The precondition in the headers (RFC 9110, section 13.1).
///
/// # Errors
/// `invalid_value` if the headers contradict each other.
pub(crate) fn precondition(headers: &HeaderMap) -> Result<WriteCondition, Failure> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("").trim().to_owned());
    let invalid = |message: &str| Err(Failure::new(ErrorCode::InvalidValue, message));
    match (text("if-match"), text("if-none-match")) {
        (None, None) => Ok(WriteCondition::None),
        (Some(_), Some(_)) => invalid("`If-Match` and `If-None-Match` together cannot both hold; send one"),
        (Some(all), None) if all == "*" => Ok(WriteCondition::Exists),
        (Some(tags), None) => {
            Ok(WriteCondition::Matches(tags.split(',').map(|tag| tag.trim().to_owned()).collect()))
        }
        (None, Some(all)) if all == "*" => Ok(WriteCondition::Absent),
        (None, Some(_)) => invalid("`If-None-Match` of a write must be `*`, for a file that does not exist"),
    }
}
