//! TLS to the server, with the certificates of the system or those of `sslrootcert`.

use std::sync::Arc;

use ff_store::{Result, StoreError};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::options::{Encryption, Options};

/// The connector for the chosen mode. Whether TLS is used at all is said in the connection's own settings.
pub(crate) fn connector(options: &Options) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Config(format!("TLS: {error}")))?;
    let config = match options.encryption {
        Encryption::VerifyFull => builder.with_root_certificates(roots(options)?).with_no_client_auth(),
        Encryption::Disable | Encryption::Prefer | Encryption::Require => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified(provider))).with_no_client_auth()
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

fn roots(options: &Options) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = &options.root_certificate else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let wrong = |why: String| StoreError::Config(format!("sslrootcert {}: {why}", path.display()));
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| wrong(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("no certificate in it".into()));
    }
    Ok(roots)
}

/// `prefer` and `require` encrypt without checking the server's identity, as they do everywhere.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
