//! Asking a ring from anywhere: `status`, `leave`, `stop`, `set`.

use crate::output::{self, Done, Usage};
use crate::ring;
use clap::Args;
use planaria_actors::protocol::message::Request;
use planaria_actors::ring::net::{Answer, Question, RingStatus};
use planaria_base::NodeId;
use planaria_transport::codec::{decode, encode};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// Where a ring is, and the key to it.
#[derive(Args)]
struct Door {
    /// Any member of the ring
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7077")]
    at: String,
    /// File with the ring key; by default ~/.planaria/ring.key or PLANARIA_RING_KEY
    #[arg(long)]
    key: Option<PathBuf>,
}

impl Door {
    fn ask(&self, question: &Question) -> anyhow::Result<Answer> {
        let key = ring::load_key(self.key.as_deref())?;
        let addresses = ring::resolve(&self.at)?;
        let local = if addresses[0].is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let local = local.parse().map_err(|_| anyhow::anyhow!("no local address"))?;
        let (transport, _ear) = ring::transport(key, ring::fresh_name()?, local)?;
        let mut failed = None;
        for at in addresses {
            match transport.ask(at, encode(question), Duration::from_secs(5)) {
                Ok(bytes) => return Ok(decode(&bytes)?),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or_else(|| anyhow::anyhow!("no address"), Into::into))
    }

    fn request(&self, request: Request) -> anyhow::Result<Done> {
        match self.ask(&Question::Do(request))? {
            Answer::Done => Ok(Done::All),
            Answer::Refused(why) => Err(Usage(why).into()),
            _ => anyhow::bail!("{} does not answer what was asked", self.at),
        }
    }

    fn status(&self) -> anyhow::Result<RingStatus> {
        match self.ask(&Question::Status)? {
            Answer::Status(status) => Ok(*status),
            Answer::Refused(why) => anyhow::bail!("{why}"),
            _ => anyhow::bail!("{} does not answer what was asked", self.at),
        }
    }
}

/// Show the nodes of a ring and how far its run is
#[derive(Args)]
pub(crate) struct Status {
    #[command(flatten)]
    door: Door,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Status {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        let status = self.door.status()?;
        if self.json {
            output::json(&as_json(&status));
            return Ok(Done::All);
        }
        let loss = status.loss.map_or(String::new(), |l| format!(", loss {l:.4}"));
        output::line(&format!(
            "step {} of {}{loss}; durable at {}; view {}{}; {} copies of every chunk at least",
            status.step,
            status.last_step,
            status.durable,
            status.view,
            if status.primary { "" } else { " (provisional)" },
            status.copies
        ));
        output::line("node              address                owns  holds  leaves");
        for m in &status.members {
            let at = m.member.at.map_or("-".to_owned(), |a| a.to_string());
            let drains = if m.member.draining { "  leaving" } else { "" };
            output::line(&format!(
                "{:016x}  {at:<21}  {:>4}  {:>5}  {:>6}{drains}",
                m.member.node.0, m.owned, m.held, m.leaves
            ));
        }
        Ok(Done::All)
    }
}

fn as_json(status: &RingStatus) -> serde_json::Value {
    let members: Vec<_> = status
        .members
        .iter()
        .map(|m| {
            json!({
                "node": format!("{:016x}", m.member.node.0),
                "at": m.member.at,
                "owns": m.owned,
                "holds": m.held,
                "leaves": m.leaves,
                "weight": m.weight,
                "draining": m.member.draining,
            })
        })
        .collect();
    json!({
        "step": status.step,
        "last_step": status.last_step,
        "durable": status.durable,
        "view": status.view,
        "primary": status.primary,
        "copies": status.copies,
        "loss": status.loss,
        "members": members,
    })
}

/// Ask a node to hand its chunks over and leave
#[derive(Args)]
pub(crate) struct Leave {
    /// The node, as `planaria status` names it (a prefix will do)
    node: String,
    #[command(flatten)]
    door: Door,
}

impl Leave {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        let status = self.door.status()?;
        let named = |m: &&_| -> bool {
            let m: &planaria_actors::ring::net::MemberStatus = m;
            format!("{:016x}", m.member.node.0).starts_with(&self.node.to_lowercase())
        };
        let found: Vec<NodeId> =
            status.members.iter().filter(named).map(|m| m.member.node).collect();
        match found[..] {
            [node] => self.door.request(Request::Leave(node)),
            [] => Err(Usage(format!("no member is called {}", self.node)).into()),
            _ => Err(Usage(format!("{} members are called {}", found.len(), self.node)).into()),
        }
    }
}

/// Stop a run at the end of its step, with a checkpoint
#[derive(Args)]
pub(crate) struct StopRun {
    #[command(flatten)]
    door: Door,
}

impl StopRun {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        self.door.request(Request::Stop)
    }
}

/// Change a number of a run under way
#[derive(Args)]
#[command(after_help = "Example:\n  planaria set lr=*0.5 --at 10.0.0.1:7077")]
pub(crate) struct Set {
    /// lr=*FACTOR: multiply the learning rate from the next step on
    #[arg(value_name = "lr=*FACTOR")]
    change: String,
    #[command(flatten)]
    door: Door,
}

impl Set {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        let factor = self.change.strip_prefix("lr=*").and_then(|f| f.parse::<f32>().ok());
        match factor.filter(|f| f.is_finite() && *f >= 0.0) {
            Some(factor) => self.door.request(Request::ScaleRate(factor.to_bits())),
            None => Err(Usage(format!(
                "{}: expected lr=*FACTOR, a factor of at least 0 such as lr=*0.5",
                self.change
            ))
            .into()),
        }
    }
}
