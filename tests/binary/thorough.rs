//! Subjects of which each test is thorough: `make test-all` runs them, `make test` does not.

mod qemu_update;
mod random_kills;
mod schemathesis;
