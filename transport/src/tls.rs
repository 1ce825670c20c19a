//! A ring's certificate authority, derived from its key; each node issues its own certificate.

use crate::key::RingKey;
use crate::{Error, WIRE_VERSION};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::sync::Arc;

/// The name in every node's certificate: who a node is stands in its frames, not in its certificate.
pub(crate) const SERVER_NAME: &str = "node.planaria";

/// PKCS#8 around an Ed25519 seed (RFC 8410, section 7).
const PKCS8_ED25519: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

fn tls_error(error: impl std::fmt::Display) -> Error {
    Error::Tls(error.to_string())
}

fn alpn() -> Vec<Vec<u8>> {
    vec![format!("planaria/{WIRE_VERSION}").into_bytes()]
}

/// Both sides' TLS of a node.
pub(crate) struct RingTls {
    pub(crate) client: ClientConfig,
    pub(crate) server: ServerConfig,
}

impl RingTls {
    /// Derives the authority and issues a certificate.
    pub(crate) fn new(key: &RingKey) -> Result<RingTls, Error> {
        let (authority, issuer) = authority(key)?;
        let own = KeyPair::generate().map_err(tls_error)?;
        let params = CertificateParams::new(vec![SERVER_NAME.to_owned()]).map_err(tls_error)?;
        let certificate = params.signed_by(&own, &issuer).map_err(tls_error)?.der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(authority).map_err(tls_error)?;
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let secret = || PrivateKeyDer::from(PrivatePkcs8KeyDer::from(own.serialize_der()));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(tls_error)?;
        let versions = &[&rustls::version::TLS13];
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(tls_error)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate.clone()], secret())
            .map_err(tls_error)?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(tls_error)?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate], secret())
            .map_err(tls_error)?;
        server.alpn_protocols = alpn();
        client.alpn_protocols = alpn();
        Ok(RingTls { client, server })
    }
}

/// The same authority on every node: its key follows from the ring's, its content is fixed.
fn authority(key: &RingKey) -> Result<(CertificateDer<'static>, Issuer<'static, KeyPair>), Error> {
    let mut pkcs8 = PKCS8_ED25519.to_vec();
    pkcs8.extend(key.derive("planaria 2026 certificate authority"));
    let pair = KeyPair::try_from(&PrivatePkcs8KeyDer::from(pkcs8)).map_err(tls_error)?;
    let mut params = CertificateParams::new(Vec::<String>::new()).map_err(tls_error)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, "planaria ring");
    params.serial_number = Some(1u64.into());
    let certificate = params.self_signed(&pair).map_err(tls_error)?.der().clone();
    Ok((certificate, Issuer::new(params, pair)))
}
