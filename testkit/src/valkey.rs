//! Valkey servers for tests.
