//! FlowFabric on Valkey.
