//! PostgreSQL servers for tests.
