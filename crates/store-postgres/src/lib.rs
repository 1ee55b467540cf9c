//! FlowFabric on PostgreSQL.
