//! TLS towards others: collectors of traces and receivers of webhooks.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

/// Connects to servers that the authorities of the system vouch for.
pub(crate) fn connector() -> Result<TlsConnector, String> {
    let mut roots = RootCertStore::empty();
    // Systems carry odd certificates; those that cannot be used are left out, as everyone does.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|why| format!("cannot be reached over TLS: {why}"))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
