//! `planaria node`: one more node for a run that is under way.

use crate::interrupt;
use crate::output::{self, Done, Usage};
use crate::ring::{self, CheckpointVault, RingSession, RunIntro};
use anyhow::Context;
use clap::Args;
use planaria_actors::protocol::spec::Timing;
use planaria_actors::protocol::view::Member;
use planaria_actors::ring::net::{Answer, NetWire, Question};
use planaria_actors::ring::run::{Entry, NodeSetup, Run, Setup};
use planaria_actors::step::schedule::Order;
use planaria_models::kernels::Isa;
use planaria_storage::checkpoint::Checkpoints;
use planaria_transport::codec::{decode, encode};
use planaria_transport::{Error, Transport};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Join a run that is under way
#[derive(Args)]
#[command(
    after_help = "The node learns the run from the ring and needs no configuration. It needs the ring key\n(~/.planaria/ring.key, --key, or PLANARIA_RING_KEY), and the run's token file under the same path.\n\nExample:\n  planaria node --join 10.0.0.1:7077"
)]
pub(crate) struct Node {
    /// Any member of the ring; a name stands for all its addresses (repeatable)
    #[arg(long, value_name = "HOST:PORT", required = true)]
    join: Vec<String>,
    /// Where to listen; by default any free port of the interface that reaches the ring
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// File with the ring key
    #[arg(long)]
    key: Option<PathBuf>,
    /// Compute threads; by default all cores
    #[arg(long)]
    threads: Option<usize>,
}

impl Node {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        let seeds = self.seeds()?;
        let node = ring::fresh_name()?;
        let listen = match &self.listen {
            Some(at) => ring::resolve(at)?[0],
            None => unspecified(seeds[0]),
        };
        let (transport, ear) = ring::transport(ring::load_key(self.key.as_deref())?, node, listen)?;
        let (intro, members, door) = knock(&transport, &seeds)?;
        let at = transport.address_towards(door).context("no way back from the ring")?;
        let source = intro.data.open().context("the run's data")?;
        let wire = NetWire::new(transport, &members);
        let threads = self.threads.unwrap_or_else(crate::machine::cores);
        let checkpoints = Checkpoints::open(&intro.dir.join("checkpoints"));
        let run = Run::start(NodeSetup {
            spec: intro.spec.clone(),
            ring: intro.ring,
            timing: Timing::default(),
            setup: Setup {
                threads,
                isa: Isa::detect(),
                order: Order::BreadthFirst,
                recompute: false,
            },
            identity: ring::identity(Some(at), node),
            entry: Entry::Join(members.iter().map(|m| m.node).collect()),
            source: Box::new(source),
            validation: None,
            vault: Arc::new(CheckpointVault::new(intro.clone(), checkpoints)),
            wire: Arc::new(wire),
        })?;
        interrupt::watch()?;
        output::note(&format!("joining run {} at {door}, listening at {at}", intro.spec.run_id()));
        let ended = RingSession::new(run, &ear, &intro, false).leaving(node).follow()?;
        Ok(if ended.interrupted { Done::Interrupted } else { Done::All })
    }

    fn seeds(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let mut seeds = Vec::new();
        for seed in &self.join {
            seeds.extend(ring::resolve(seed)?);
        }
        Ok(seeds)
    }
}

fn unspecified(towards: SocketAddr) -> SocketAddr {
    match towards {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0u16; 8], 0).into(),
    }
}

/// Asks the seeds in turn until one answers.
fn knock(
    transport: &Transport,
    seeds: &[SocketAddr],
) -> anyhow::Result<(RunIntro, Vec<Member>, SocketAddr)> {
    let question = encode(&Question::Knock { numerics: ring::knock(Isa::detect()) });
    let mut last = None;
    for &seed in seeds {
        match transport.ask(seed, question.clone(), ANSWER_WITHIN) {
            Ok(bytes) => match decode::<Answer>(&bytes)? {
                Answer::Welcome { run, members } => {
                    let intro = serde_json::from_str(&run).context("the ring's introduction")?;
                    return Ok((intro, members, seed));
                }
                Answer::Refused(reason) => return Err(Usage(format!("{seed}: {reason}")).into()),
                _ => anyhow::bail!("{seed} does not answer what was asked"),
            },
            Err(error @ (Error::WrongKey { .. } | Error::WrongVersion { .. })) => {
                return Err(Usage(error.to_string()).into());
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("no seed"), anyhow::Error::from))
}
