//! The run as a joining node learns it, the ring's key, and addresses.

use crate::data::Stretch;
use crate::output::Usage;
use anyhow::Context;
use planaria_actors::ring::net::Introduction;
use planaria_actors::ring::run::RingPlan;
use planaria_actors::spec::RunSpec;
use planaria_models::block::Precision;
use planaria_models::kernels::Isa;
use planaria_transport::key::{KEY_VARIABLE, RingKey};
use serde::{Deserialize, Serialize};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

/// Everything that a node needs to know of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct RunIntro {
    /// The release that every node must have.
    pub(crate) version: String,
    /// The run spec.
    pub(crate) spec: RunSpec,
    /// ZeRO stage, replicas, steps.
    pub(crate) ring: RingPlan,
    /// The run's folder, where checkpoints go.
    pub(crate) dir: PathBuf,
    /// The training data.
    pub(crate) data: Stretch,
    /// What goes into a checkpoint beside the state.
    pub(crate) extra: serde_json::Value,
}

/// Nodes whose text is equal compute equal bits: fp32 does not depend on the instruction set, 16-bit
/// products do.
pub(crate) fn numerics(precision: Precision, isa: Isa) -> String {
    match precision {
        Precision::F32 => "fp32".to_owned(),
        Precision::Bf16 => format!("bf16 {isa}"),
        Precision::F16 => "fp16".to_owned(),
    }
}

/// What a member tells those who knock.
pub(crate) struct Host {
    pub(crate) intro: RunIntro,
    pub(crate) isa: Isa,
}

impl Introduction for Host {
    fn run(&self, theirs: &str) -> Result<String, String> {
        let (version, isa) = (env!("CARGO_PKG_VERSION"), self.isa);
        let ours = numerics(self.intro.spec.precision, isa);
        let (their_version, their_isa) = theirs.split_once(' ').unwrap_or((theirs, ""));
        if their_version != version {
            return Err(format!("this ring runs planaria {version}, you have {their_version}"));
        }
        if ours.ends_with(&isa.to_string()) && their_isa != isa.to_string() {
            return Err(format!(
                "this run's numerics are {ours}; your processor offers {their_isa}, whose bits differ"
            ));
        }
        serde_json::to_string(&self.intro).map_err(|e| e.to_string())
    }

    fn data(&self, _: u64) -> Result<Vec<u8>, String> {
        Err("data is not sent to nodes yet: put the token file under the same path".to_owned())
    }
}

/// What a node says of itself when it knocks.
pub(crate) fn knock(isa: Isa) -> String {
    format!("{} {isa}", env!("CARGO_PKG_VERSION"))
}

/// The ring key: of the environment, of a file, or of the file in the user's home, made if missing.
///
/// # Errors
/// If the key is malformed, or others may read it.
#[allow(clippy::disallowed_methods, reason = "the key may be in the environment")]
pub(crate) fn load_key(file: Option<&Path>) -> anyhow::Result<RingKey> {
    if let (None, Ok(text)) = (file, std::env::var(KEY_VARIABLE)) {
        return RingKey::parse(&text)
            .ok_or_else(|| Usage(format!("{KEY_VARIABLE} is not 64 hexadecimal digits")).into());
    }
    let home = || std::env::var("HOME").map(|h| PathBuf::from(h).join(".planaria/ring.key"));
    let path = match file {
        Some(path) => path.to_owned(),
        None => home().context("HOME is not set: name the ring key with --key")?,
    };
    Ok(RingKey::load_or_create(&path)?)
}

/// All addresses of a name.
///
/// # Errors
/// If it is not HOST:PORT or has none.
pub(crate) fn resolve(at: &str) -> anyhow::Result<Vec<SocketAddr>> {
    let found =
        at.to_socket_addrs().map_err(|e| Usage(format!("{at}: {e}; expected HOST:PORT")))?;
    let found: Vec<SocketAddr> = found.collect();
    anyhow::ensure!(!found.is_empty(), "{at} has no address");
    Ok(found)
}
