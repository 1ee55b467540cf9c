//! The certificate that this server shows its clients. It stands in two files, which are read again when they change:
//! certificates live for weeks, and servers for longer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longer files hold something else.
const FILE_MAX_BYTES: u64 = 1024 * 1024;

/// HTTP/2, as it is called in a handshake.
pub(crate) const H2: &[u8] = b"h2";

/// A certificate with its key.
pub(crate) struct Certificate {
    files: Files,
    looks: Mutex<Looks>,
    current: RwLock<Arc<CertifiedKey>>,
}

/// What looks at the files have found.
struct Looks {
    /// The last time.
    last: Seen,
    /// When they were last judged, for better or worse: what is bad is reported once.
    judged: Seen,
}

struct Files {
    chain: PathBuf,
    key: PathBuf,
}

/// The digest of both files, or the reason why they cannot be read.
type Seen = Result<[u8; 32], String>;

impl Certificate {
    /// Reads a certificate and its key, which must belong together.
    pub(crate) fn load(chain: &Path, key: &Path) -> Result<Self, String> {
        let files = Files { chain: chain.to_owned(), key: key.to_owned() };
        let contents = files.read()?;
        let current = RwLock::new(Arc::new(files.parse(&contents)?));
        let seen = Ok(contents.digest());
        Ok(Self { files, looks: Mutex::new(Looks { last: seen.clone(), judged: seen }), current })
    }

    /// Accepts connections with this certificate, as it is when each of them begins.
    pub(crate) fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![H2.to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Follows the files for as long as it is polled. Files that cannot be used change nothing.
    pub(crate) async fn follow(self: &Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let certificate = self.clone();
            match tokio::task::spawn_blocking(move || certificate.look()).await {
                Ok(Some(Ok(()))) => tracing::info!("the certificate has changed and is shown to new connections"),
                Ok(Some(Err(error))) => {
                    tracing::error!(error, "the changed certificate cannot be used; the one before it is still shown");
                }
                Ok(None) | Err(_) => {}
            }
        }
    }

    /// Looks at the files once: `None` if there is nothing new to judge. The two are written one after the other, so
    /// that only a pair that two looks have found is judged.
    fn look(&self) -> Option<Result<(), String>> {
        let read = self.files.read();
        let seen = read.as_ref().map(Contents::digest).map_err(String::clone);
        let mut looks = self.looks.lock().expect("no holder of this lock panics");
        let settled = std::mem::replace(&mut looks.last, seen.clone()) == seen;
        if !settled || looks.judged == seen {
            return None;
        }
        looks.judged = seen;
        let renewed = read.and_then(|contents| self.files.parse(&contents));
        Some(renewed.map(|renewed| {
            *self.current.write().expect("no holder of this lock panics") = Arc::new(renewed);
        }))
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().expect("no holder of this lock panics").clone())
    }
}

/// Without the key.
impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificate").field("chain", &self.files.chain).finish_non_exhaustive()
    }
}

struct Contents {
    chain: Vec<u8>,
    key: Vec<u8>,
}

impl Contents {
    fn digest(&self) -> [u8; 32] {
        let both = Sha256::new().chain_update(Sha256::digest(&self.chain)).chain_update(Sha256::digest(&self.key));
        both.finalize().into()
    }
}

impl Files {
    fn read(&self) -> Result<Contents, String> {
        let read = |setting: &str, path: &Path| {
            let unreadable = |why: std::io::Error| format!("{setting} {}: {why}", path.display());
            let length = std::fs::metadata(path).map_err(unreadable)?.len();
            if length > FILE_MAX_BYTES {
                return Err(format!("{setting} {}: has {length} bytes, more than any certificate", path.display()));
            }
            std::fs::read(path).map_err(unreadable)
        };
        Ok(Contents { chain: read("tls_cert_file", &self.chain)?, key: read("tls_key_file", &self.key)? })
    }

    /// The errors name the file and never quote it.
    fn parse(&self, contents: &Contents) -> Result<CertifiedKey, String> {
        let (chain_path, key_path) = (self.chain.display(), self.key.display());
        let chain: Vec<_> = CertificateDer::pem_slice_iter(&contents.chain)
            .collect::<Result<_, _>>()
            .map_err(|_| format!("tls_cert_file {chain_path}: is no PEM file"))?;
        if chain.is_empty() {
            return Err(format!("tls_cert_file {chain_path}: holds no certificate in PEM"));
        }
        let key = PrivateKeyDer::from_pem_slice(&contents.key)
            .map_err(|_| format!("tls_key_file {key_path}: holds no unencrypted private key in PEM"))?;
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(chain, key, &provider).map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                format!("tls_key_file {key_path}: is not the key of the certificate in {chain_path}")
            }
            other => format!("tls_cert_file {chain_path} with tls_key_file {key_path}: {other}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made() -> rcgen::CertifiedKey<rcgen::KeyPair> {
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap()
    }

    #[test]
    fn a_changed_pair_is_used_once_it_is_whole_and_a_bad_one_is_reported_once_and_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
        let (one, other) = (made(), made());
        std::fs::write(&chain, one.cert.pem()).unwrap();
        std::fs::write(&key, one.signing_key.serialize_pem()).unwrap();
        let certificate = Certificate::load(&chain, &key).unwrap();
        let shows = |of: &rcgen::CertifiedKey<rcgen::KeyPair>| {
            certificate.current.read().unwrap().cert[0].as_ref() == of.cert.der().as_ref()
        };
        assert_eq!((certificate.look(), certificate.look()), (None, None));
        std::fs::write(&chain, other.cert.pem()).unwrap();
        assert_eq!(certificate.look(), None);
        std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        assert_eq!(certificate.look(), None);
        assert!(shows(&one));
        assert_eq!(certificate.look(), Some(Ok(())));
        assert!(shows(&other));
        std::fs::write(&key, one.signing_key.serialize_pem()).unwrap();
        assert_eq!(certificate.look(), None);
        assert!(certificate.look().unwrap().unwrap_err().contains("is not the key"));
        std::fs::remove_file(&key).unwrap();
        assert_eq!(certificate.look(), None);
        assert!(certificate.look().unwrap().unwrap_err().contains("key.pem"));
        assert_eq!(certificate.look(), None);
        assert!(shows(&other));
        std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        assert_eq!((certificate.look(), certificate.look(), certificate.look()), (None, Some(Ok(())), None));
    }

    #[test]
    fn files_that_cannot_be_used_are_refused_by_name_and_not_quoted() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let (one, other) = (made(), made());
        let chain = write("chain.pem", &one.cert.pem());
        let key = write("key.pem", &one.signing_key.serialize_pem());
        let foreign = write("foreign.pem", &other.signing_key.serialize_pem());
        let nonsense = write("nonsense.pem", "canary");
        let empty = write("empty.pem", "");
        let absent = folder.path().join("absent.pem");
        assert!(Certificate::load(&chain, &key).is_ok());
        for (chain, key, setting, why) in [
            (&absent, &key, "tls_cert_file", "absent.pem"),
            (&chain, &absent, "tls_key_file", "absent.pem"),
            (&empty, &key, "tls_cert_file", "no certificate"),
            (&nonsense, &key, "tls_cert_file", "no certificate"),
            (&key, &key, "tls_cert_file", "no certificate"),
            (&chain, &nonsense, "tls_key_file", "no unencrypted private key"),
            (&chain, &chain, "tls_key_file", "no unencrypted private key"),
            (&chain, &foreign, "tls_key_file", "is not the key"),
        ] {
            let refused = Certificate::load(chain, key).unwrap_err();
            assert!(refused.contains(setting) && refused.contains(why) && !refused.contains("canary"), "{refused}");
        }
    }
}
