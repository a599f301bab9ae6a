//! `/api/waitlist`: joining is public; listing and removing entries is for the operator.

use std::sync::Arc;

use axum::{
    body::Body as HttpBody,
    extract::State,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use email_address::{EmailAddress, Options};
use futures_util::{StreamExt, stream};
use http::{
    HeaderMap,
    header::{CONTENT_DISPOSITION, CONTENT_TYPE},
};
use serde::Deserialize;
use skep_api::{
    ErrorCode, Failure, WaitlistId,
    waitlist::{
        JoinStatus, JoinWaitlist, Joined, RemoveFromWaitlist, Removed, Waitlist, WaitlistEntry, WaitlistRef,
    },
};
use skep_store::{ListWaitlist, WaitlistPage, WaitlistStore};
use tokio_util::task::AbortOnDropHandle;
use utoipa::IntoParams;
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{
    Routes,
    handle::{self, Handle, Operation, Request, endpoints, respond},
    page,
};
use crate::{
    csv_text,
    door::{address::CallerAddress, limits::Limiter},
    error::Refusal,
    extract::{Caller, Query, RequestInfo, ServerAdmin},
    json::Json,
    negotiate::{self, MediaType},
    openapi::{endpoint::describe, refusals::ListFormatRefused},
};

/// The longest email address (RFC 5321), in bytes.
const MAX_EMAIL_BYTES: usize = 254;
/// The longest name, in characters.
const MAX_NAME_CHARS: usize = 100;
/// The longest use case, in characters.
const MAX_USE_CASE_CHARS: usize = 2_000;
/// Entries that are read at a time for the CSV of the whole list.
const CSV_PAGE: u32 = 1_000;

#[derive(Clone)]
pub(crate) struct WaitlistState {
    store: Arc<dyn WaitlistStore>,
    limiter: Arc<Limiter>,
}

impl WaitlistState {
    pub(crate) fn new(store: Arc<dyn WaitlistStore>, limiter: Arc<Limiter>) -> Self {
        Self { store, limiter }
    }
}

pub(crate) fn public_routes(state: WaitlistState) -> Routes {
    vec![handle::route::<JoinWaitlist, _, _, _>(describe::<JoinWaitlist>(), join, state)]
}

/// The routes that need a key.
pub(crate) fn routes(state: WaitlistState) -> Routes {
    let mut routes = endpoints![state; RemoveFromWaitlist];
    routes.push(routes!(list).with_state(state));
    routes
}

async fn join(
    State(state): State<WaitlistState>,
    CallerAddress(address): CallerAddress,
    call: RequestInfo,
    Operation(request): Operation<JoinWaitlist>,
) -> Result<Response, Refusal> {
    let command = skep_store::JoinWaitlist {
        email: check_email(request.email)?,
        name: check_line("name", request.name, MAX_NAME_CHARS)?,
        company: check_line("company", request.company, MAX_NAME_CHARS)?,
        use_case: check_text("use_case", request.use_case, MAX_USE_CASE_CHARS)?,
        at: call.arrival.wall,
    };
    // Counted only after the checks, so that a typo does not use up the limit.
    state.limiter.count_waitlist(address)?;
    state.store.join_waitlist(command).await?;
    Ok(respond::<JoinWaitlist>(Joined { status: JoinStatus::Ok }))
}

/// Checks an email address that is valid on the internet: no display name, no host without a domain, no IP address.
fn check_email(text: String) -> Result<String, Failure> {
    let wrong = |why: String| {
        let shown: String = text.chars().take(80).collect();
        Err(invalid(format!("`email` is {shown:?}: {why}; give an address such as ada@example.com")))
    };
    if text.len() > MAX_EMAIL_BYTES {
        return wrong(format!("it has {} bytes, and mail carries {MAX_EMAIL_BYTES}", text.len()));
    }
    if text.chars().any(char::is_control) {
        return wrong("it holds a control character".to_owned());
    }
    let strict = Options::default().with_required_tld().without_domain_literal().without_display_text();
    match EmailAddress::parse_with_options(&text, strict) {
        Ok(_) => Ok(text),
        Err(error) => wrong(error.to_string()),
    }
}

/// Checks a text of one line. A blank one counts as absent.
fn check_line(field: &str, value: Option<String>, max_chars: usize) -> Result<Option<String>, Failure> {
    if let Some(control) = value.as_deref().and_then(|text| text.chars().find(|c| c.is_control())) {
        return Err(invalid(format!("`{field}` holds the control character {control:?}; leave it out")));
    }
    check_text(field, value, max_chars)
}

/// Checks a text. A blank one that is valid counts as absent.
fn check_text(field: &str, value: Option<String>, max_chars: usize) -> Result<Option<String>, Failure> {
    let Some(value) = value else { return Ok(None) };
    let characters = value.chars().count();
    if characters > max_chars {
        return Err(invalid(format!("`{field}` has {characters} characters; keep it to {max_chars}")));
    }
    if value.contains('\0') {
        return Err(invalid(format!("`{field}` holds a NUL character; leave it out")));
    }
    Ok(Some(value).filter(|text| !text.trim().is_empty()))
}

fn invalid(message: String) -> Failure {
    Failure::new(ErrorCode::InvalidValue, message)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Page {
    /// Entries on the page, 1 to 1,000; default 100.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    #[param(inline, value_type = Option<WaitlistId>)]
    cursor: Option<String>,
}

/// List the waitlist
///
/// Newest first, each address once. With `Accept: text/csv` the answer is the whole list as a file, and `limit` and
/// `cursor` cannot be given; cells that a spreadsheet would take for a formula begin with an apostrophe.
#[utoipa::path(
    get, path = "/api/waitlist", tag = "waitlist", operation_id = "list_waitlist", params(Page),
    security(("bearer" = ["server:admin"])),
    responses(
        (status = 200, description = "A page of the list, or all of it", content(
            (Waitlist = "application/json"), (String = "text/csv", example = json!("id,email,name,company,use_case,joined_at\r\n"))
        )),
        ListFormatRefused,
    )
)]
async fn list(
    State(state): State<WaitlistState>,
    _: Caller<ServerAdmin>,
    Query(page): Query<Page>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (limit, before) = page::check::<WaitlistId>(page.limit, page.cursor.as_deref())?;
    if negotiate::list_media_type(&headers)? == MediaType::Csv {
        if page.limit.is_some() || page.cursor.is_some() {
            let message = "CSV is always the whole list: leave out `limit` and `cursor`, or ask for JSON";
            return Err(invalid(message.to_owned()).into());
        }
        return as_csv(state.store).await;
    }
    let page = state.store.list_waitlist(ListWaitlist { limit, before }).await?;
    let next_cursor = page.next.map(|id| id.to_string());
    Ok(Json(Waitlist { entries: page.entries, next_cursor }).into_response())
}

/// Streams the whole list as CSV, with one page in memory at a time.
async fn as_csv(store: Arc<dyn WaitlistStore>) -> Result<Response, Refusal> {
    // The first page is read before the response begins, while a refusal is still possible.
    let first = store.list_waitlist(ListWaitlist { limit: CSV_PAGE, before: None }).await?;
    let head = ["id", "email", "name", "company", "use_case", "joined_at"].map(str::to_owned);
    let head = csv_text::encode_rows([head]).map_err(Refusal::internal)?;
    let pages = stream::unfold(Some(Ok(first)), move |page| {
        let store = Arc::clone(&store);
        async move { next_part(store, page?).await }
    });
    let whole = stream::iter([Ok::<Bytes, String>(head)]).chain(pages);
    let headers = [
        (CONTENT_TYPE, "text/csv; charset=utf-8; header=present"),
        (CONTENT_DISPOSITION, "attachment; filename=\"waitlist.csv\""),
    ];
    Ok((headers, HttpBody::from_stream(whole)).into_response())
}

type PageResult = Result<WaitlistPage, String>;

/// The rows of a page, and the next page. A failure aborts the response, so that the caller notices that it is
/// incomplete.
async fn next_part(
    store: Arc<dyn WaitlistStore>,
    page: PageResult,
) -> Option<(Result<Bytes, String>, Option<PageResult>)> {
    let page = match page {
        Ok(page) => page,
        Err(error) => {
            tracing::warn!(error, "a CSV export of the waitlist was aborted");
            return Some((Err(error), None));
        }
    };
    let rows = csv_text::encode_rows(page.entries.into_iter().map(row));
    let next = match page.next {
        None => None,
        before => {
            // A separate task waits for the store, because this future is polled only while the caller reads.
            let query = ListWaitlist { limit: CSV_PAGE, before };
            let reading =
                AbortOnDropHandle::new(tokio::spawn(async move { store.list_waitlist(query).await }));
            let page = reading.await.map_err(|error| error.to_string());
            Some(page.and_then(|page| page.map_err(|error| error.to_string())))
        }
    };
    Some((rows, next))
}

fn row(entry: WaitlistEntry) -> [String; 6] {
    [
        entry.id.to_string(),
        entry.email,
        entry.name.unwrap_or_default(),
        entry.company.unwrap_or_default(),
        entry.use_case.unwrap_or_default(),
        format!("{:.3}", entry.joined_at),
    ]
}

impl Handle<WaitlistState> for RemoveFromWaitlist {
    async fn handle(self, state: WaitlistState, request: Request<WaitlistRef>) -> Result<Removed, Refusal> {
        let command = match request.path()? {
            WaitlistRef::Id(id) => skep_store::RemoveFromWaitlist::Id(id),
            WaitlistRef::Email(email) => skep_store::RemoveFromWaitlist::Email(email),
        };
        let removed = state.store.remove_from_waitlist(command).await?;
        // The audit log gets the id instead of the address, which must not be kept anywhere.
        request.info.audit.set_resource(removed.id);
        Ok(Removed { id: removed.id, removed: true })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_addresses_that_mail_reaches_are_taken() {
        for good in ["ada@example.com", "a.b+c@sub.example.co.uk", "ünï@exämple.com", "o'brien@example.com"]
        {
            assert_eq!(check_email(good.to_owned()).as_deref(), Ok(good));
        }
        let long = format!("{}@{}.example.com", "a".repeat(64), "b".repeat(190));
        for wrong in [
            "",
            "ada",
            "@",
            "ada@",
            "@example.com",
            "ada@localhost",
            "ada@[127.0.0.1]",
            "a b@example.com",
            "Ada <ada@example.com>",
            "ada@example.com\r\nBcc: x@example.com",
            " ada@example.com",
            "a@b@example.com",
            "ada@example..com",
            "ada@-example.com",
            "ada@example.com\0",
            &long,
        ] {
            let failure = check_email(wrong.to_owned()).unwrap_err();
            assert_eq!(failure.code, ErrorCode::InvalidValue, "{wrong:?}");
            assert!(failure.message.starts_with("`email` is "), "{failure}");
        }
    }

    #[test]
    fn texts_have_an_end_and_blank_ones_count_as_absent() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(check_line("name", some(" "), 5), Ok(None));
        assert_eq!(check_line("name", some("süßes"), 5), Ok(some("süßes")));
        assert!(check_line("name", some("süßes!"), 5).unwrap_err().message.contains("6 characters"));
        assert!(check_line("name", some("a\nb"), 5).unwrap_err().message.contains("`name`"));
        assert_eq!(check_text("use_case", some("a\nb"), 5), Ok(some("a\nb")));
        assert!(check_text("use_case", some("a\0b"), 5).is_err());
    }

    proptest! {
        #[test]
        fn the_email_check_never_panics(text in any::<String>()) {
            if let Ok(taken) = check_email(text.clone()) {
                prop_assert_eq!(taken, text);
            }
        }
    }
}
