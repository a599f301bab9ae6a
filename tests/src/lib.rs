//! Tests through the front door; see `main.rs`.
