//! Tests of the HTTP API in one process; see `main.rs`.
