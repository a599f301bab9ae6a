//! End-to-end tests; see `main.rs`.
