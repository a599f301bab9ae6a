//! Request framing of HTTP/1.1: where requests begin and end, decided before the HTTP library gets their bytes.
//!
//! The library is lenient: it accepts lines that end with a bare line feed, and drops `Content-Length` beside chunked encoding. A
//! proxy in front that parses such a request differently could be abused to smuggle a second request past its rules. The library
//! also answers some invalid heads itself, with a bare status, while the API promises a JSON error. So each head is held back until
//! it is complete, and an ambiguous or invalid one is refused: in its place, the library reads a substitute request, which the
//! router answers with the refusal. The library still parses each request; this module only refuses more than the library does.
//! `docs/security/callers.md` lists the attacks.
//!
//! ```text
//! socket ─▶ ReceivedBytes ─▶ HTTP library
//!             └─ RequestBoundaries: head, body, head, ...
//!                  └─ request_head: one complete head
//! ```

mod boundaries;
mod received_bytes;
mod request_head;
#[cfg(test)]
mod tests;

pub(super) use received_bytes::ReceivedBytes;
